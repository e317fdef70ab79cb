"""Find the C functions that allocated retained memory, with memray.

This search runs if no call in Python explains the growth, such as when one call allocates and another frees: then the
memory changes in both. memray pairs allocation and release block by block, so it knows which blocks remain. The search
is left out if memray is not installed or a profiler is active.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Final, TypeAlias

from pytest_leakcheck.attribution.call_paths import read_path
from pytest_leakcheck.attribution.tracing.tracing_rounds import Made, Schedule
from pytest_leakcheck.model.culprit import Site

# Number of traced iterations. It is small because the stack of each allocation in them is unwound.
_TRACED_ITERATIONS: Final = 4
# All iterations that are needed, the one for warming up included.
FOR_NATIVE: Final = _TRACED_ITERATIONS + 1
# A line is named only if it accounts for at least this share of the growth.
_MIN_EXPLAINED_RATIO: Final = 0.5
_MAX_FUNCTIONS_SHOWN: Final = 4
_TRACE_FILE: Final = "allocations.bin"
# Function names of the interpreter begin with these. The native stack is read from its innermost function outwards, up
# to the first function of the interpreter, because the Python call path describes the rest better.
_INTERPRETER_PREFIXES: Final = ("_Py", "Py", "cfunction_", "method_vectorcall", "type_call", "slot_tp_", "vectorcall_")

# A stack frame as memray gives it: function, file, line.
_Frame: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Retained:
    """Memory retained from one call stack, in bytes over all traced iterations; the innermost frames come first."""

    size: int
    python: tuple[_Frame, ...]
    native: tuple[_Frame, ...]


def why_not() -> str:
    """Return why memray cannot be used; empty if it can."""
    if sys.getprofile() is not None:
        return "a profiler is active"
    if find_spec("memray") is None:
        return "to trace allocations in C: pip install 'pytest-leakcheck[native]'"
    return ""


def trace_natively(made: Made, slope: float, rate: float, schedule: Schedule) -> Generator[None, None, Made]:
    """Find the native stack and the Python line that allocate retained bytes; yield before each iteration.

    `made` is what is known so far, and is returned if nothing more is found. The slope is in bytes per iteration.
    """
    obstacle = why_not()
    if obstacle:
        return Made(why=f"{made.why}; {obstacle}")
    folder = Path(tempfile.mkdtemp(prefix="pytest-leakcheck-"))
    counted = 0
    try:
        with ExitStack() as tracking:
            for n in schedule.iterations(rate, _TRACED_ITERATIONS):
                yield
                schedule.collect()
                counted += n > 0
                if n == 0:
                    tracking.enter_context(_make_tracker(folder / _TRACE_FILE))
        retained = _read_retained(folder / _TRACE_FILE) if counted else []
    except RuntimeError as error:
        # Another tracker of memray is active.
        return Made(why=f"{made.why}; memray: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return most_of_it(retained, slope * counted) or made


def _make_tracker(file: Path) -> AbstractContextManager[object]:
    import memray

    return memray.Tracker(file, native_traces=True)


def _read_retained(file: Path) -> list[Retained]:
    import memray

    reader = memray.FileReader(file)
    try:
        records = reader.get_leaked_allocation_records(merge_threads=True)
        return [Retained(one.size, tuple(one.stack_trace()), tuple(one.native_stack_trace())) for one in records]
    finally:
        reader.close()


def most_of_it(retained: Iterable[Retained], wanted: float) -> Made | None:
    """Return the line that allocates most, with the C functions of its largest stack; None if it is less than half."""
    by_line: dict[tuple[str, int], list[Retained]] = {}
    for one in retained:
        where = read_path(path_of(one.python))
        if where is not None:
            by_line.setdefault((where.site.file, where.site.line), []).append(one)
    best = max(by_line.values(), key=lambda some: sum(one.size for one in some), default=[])
    if not best or sum(one.size for one in best) < _MIN_EXPLAINED_RATIO * wanted:
        return None
    largest = max(best, key=lambda one: one.size)
    return Made(path_of(largest.python), native=functions_of(largest.native))


def path_of(frames: Sequence[_Frame]) -> tuple[Site, ...]:
    """Convert a Python stack of memray to a call path, outermost frame first."""
    return tuple(Site(file, line, function) for function, file, line in reversed(frames))


def functions_of(frames: Sequence[_Frame]) -> tuple[str, ...]:
    """Return the names of the innermost C functions, at most four and each once, up to the interpreter's first."""
    inner = takewhile(
        lambda name: not name.startswith(_INTERPRETER_PREFIXES), (function for function, _file, _line in frames)
    )
    return tuple(dict.fromkeys(name for name in inner if not name.startswith("<")))[:_MAX_FUNCTIONS_SHOWN]
