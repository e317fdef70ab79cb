"""Find the line and the C functions that allocated retained memory, with memray.

It pairs allocation and release block by block, so it also knows what remains if one call allocates and another frees.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.attribution.call_paths import read_path
from pytest_leakcheck.attribution.tracing.tracing_rounds import Made, Schedule
from pytest_leakcheck.model.culprit import Site

# Number of traced iterations. It is small because the stack of each allocation in them is unwound.
_TRACED_ITERATIONS: Final = 4
# A line is named only if it accounts for at least this share of the growth.
_MIN_EXPLAINED_RATIO: Final = 0.5
_MAX_FUNCTIONS_SHOWN: Final = 4
# Function names of the interpreter begin with these. The native stack is read outwards up to the first of them.
_INTERPRETER_PREFIXES: Final = ("_Py", "Py", "cfunction_", "method_vectorcall", "type_call", "slot_tp_", "vectorcall_")


def load_memray() -> str:
    """Import memray, and return why it cannot be used; empty if it can."""
    if sys.getprofile() is not None:
        return "a profiler is active"
    try:
        import memray  # noqa: F401 - an extra
    except ImportError:
        return "to trace allocations in C: pip install 'pytest-leakcheck[native]'"
    return ""


def trace_natively(made: Made, slope: float, rate: float, schedule: Schedule) -> Generator[None, None, Made]:
    """Find the native stack and the Python line that allocate retained bytes; otherwise return what is known, `made`."""
    obstacle = load_memray()
    if obstacle:
        return Made(why=f"{made.why}; {obstacle}")
    import memray

    counted, found = 0, None
    with tempfile.TemporaryDirectory(prefix="pytest-leakcheck-", ignore_cleanup_errors=True) as folder:
        file = Path(folder, "allocations.bin")
        try:
            with ExitStack() as tracking:
                for n in schedule.iterations(rate, _TRACED_ITERATIONS):
                    yield
                    schedule.collect()
                    counted += n > 0
                    if n == 0:
                        tracking.enter_context(memray.Tracker(file, native_traces=True))
            if counted:
                with memray.FileReader(file) as reader:
                    found = find_most(reader.get_leaked_allocation_records(merge_threads=True), slope * counted)
        except RuntimeError as error:
            # Another tracker of memray is active.
            return Made(why=f"{made.why}; memray: {error}")
    return found or made


def find_most(records: Iterable[Any], wanted: float) -> Made | None:
    """Return the line that allocates most, with the C functions of its largest stack; None if it is less than half.

    The records are memray's; a frame in them is a function, a file and a line, the innermost first.
    """
    by_line: dict[tuple[str, int], list[tuple[int, Made]]] = {}
    for one in records:
        path = tuple(Site(file, line, function) for function, file, line in reversed(one.stack_trace()))
        names = takewhile(
            lambda name: not name.startswith(_INTERPRETER_PREFIXES), (f[0] for f in one.native_stack_trace())
        )
        functions = dict.fromkeys(name for name in names if not name.startswith("<"))
        made = Made(path, native=tuple(functions)[:_MAX_FUNCTIONS_SHOWN])
        if read_path(path) is not None:
            by_line.setdefault(made.line, []).append((one.size, made))
    best = max(by_line.values(), key=lambda some: sum(size for size, _made in some), default=[])
    if not best or sum(size for size, _made in best) < _MIN_EXPLAINED_RATIO * wanted:
        return None
    return max(best, key=lambda one: one[0])[1]
