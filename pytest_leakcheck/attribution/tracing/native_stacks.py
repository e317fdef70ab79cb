"""Which functions of C asked for the memory that stays, where no call in Python makes it out: memray's native stacks.

What one call allocates and another frees shows as coming and going in both of them. memray pairs the two, block by block,
so that what is left can be told; it is used where it is installed and nothing else that would be in its way is active.
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

# Iterations that are traced; each allocation in them has its stack unwound.
_FEW: Final = 4
# With the one that warms up.
FOR_NATIVE: Final = _FEW + 1
# What comes from one stack must make out so much of what stays.
_PART: Final = 0.5
_SHOWN: Final = 4
_FILE: Final = "allocations.bin"
# From here on outwards the stack is the interpreter's, which the path in Python tells better.
_INTERPRETER: Final = ("_Py", "Py", "cfunction_", "method_vectorcall", "type_call", "slot_tp_", "vectorcall_")

# As memray has it: function, file, line; innermost first.
_Frame: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Retained:
    """What one stack allocated that is still there.

    Attributes:
        size: Bytes, in all traced iterations.
        python: The path in Python, innermost first.
        native: The functions of C, innermost first.
    """

    size: int
    python: tuple[_Frame, ...]
    native: tuple[_Frame, ...]


def why_not() -> str:
    """What keeps memray from being used here; empty if nothing does."""
    if sys.getprofile() is not None:
        return "a profiler is active"
    if find_spec("memray") is None:
        return "pip install 'pytest-leakcheck[native]' tells more"
    return ""


def trace_natively(made: Made, slope: float, rate: float, schedule: Schedule) -> Generator[None, None, Made]:
    """Bytes that no call in Python makes out: the stack in C that they come from, and the line that leads there.

    Args:
        made: What is known, and why not more; given back where nothing is found.
        slope: Bytes retained per iteration.
        rate: In which part of the iterations.
        schedule: What may be spent.
    """
    obstacle = why_not()
    if obstacle:
        return Made(why=f"{made.why}; {obstacle}")
    folder = Path(tempfile.mkdtemp(prefix="pytest-leakcheck-"))
    counted = 0
    try:
        with ExitStack() as tracking:
            for n in schedule.iterations(rate, _FEW):
                yield
                schedule.collect()
                counted += n > 0
                if n == 0:
                    tracking.enter_context(_tracker(folder / _FILE))
        retained = _read(folder / _FILE) if counted else []
    except RuntimeError as error:
        # Another one is active.
        return Made(why=f"{made.why}; memray: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return most_of_it(retained, slope * counted) or made


def _tracker(file: Path) -> AbstractContextManager[object]:
    import memray

    return memray.Tracker(file, native_traces=True)


def _read(file: Path) -> list[Retained]:
    import memray

    reader = memray.FileReader(file)
    try:
        records = reader.get_leaked_allocation_records(merge_threads=True)
        return [Retained(one.size, tuple(one.stack_trace()), tuple(one.native_stack_trace())) for one in records]
    finally:
        reader.close()


def most_of_it(retained: Iterable[Retained], wanted: float) -> Made | None:
    """The line that most of it comes from, with the functions of C that its largest part was allocated in.

    Args:
        retained: By stack.
        wanted: Bytes that should be there.
    """
    by_line: dict[tuple[str, int], list[Retained]] = {}
    for one in retained:
        where = read_path(path_of(one.python))
        if where is not None:
            by_line.setdefault((where.site.file, where.site.line), []).append(one)
    best = max(by_line.values(), key=lambda some: sum(one.size for one in some), default=[])
    if not best or sum(one.size for one in best) < _PART * wanted:
        return None
    largest = max(best, key=lambda one: one.size)
    return Made(path_of(largest.python), native=functions_of(largest.native))


def path_of(frames: Sequence[_Frame]) -> tuple[Site, ...]:
    """The path in Python, outermost first."""
    return tuple(Site(file, line, function) for function, file, line in reversed(frames))


def functions_of(frames: Sequence[_Frame]) -> tuple[str, ...]:
    """The innermost functions of C up to the interpreter, innermost first, each once, as far as they have names."""
    inner = takewhile(lambda name: not name.startswith(_INTERPRETER), (function for function, _file, _line in frames))
    return tuple(dict.fromkeys(name for name in inner if not name.startswith("<")))[:_SHOWN]
