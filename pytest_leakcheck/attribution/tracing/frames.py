"""Read call paths and line numbers from frames and code objects."""

from __future__ import annotations

from types import CodeType, FrameType

from pytest_leakcheck.attribution.object_inspection import name_of
from pytest_leakcheck.model.culprit import Site


def path_to(frame: FrameType | None, call: str = "") -> tuple[Site, ...]:
    """Return the call path to a frame's current line, outermost first; `call` is what it calls, as ``name()``."""
    found: list[Site] = []
    while frame is not None:
        code = frame.f_code
        found.append(Site(code.co_filename, frame.f_lineno or code.co_firstlineno, name_of(code), call))
        call = f"{name_of(code)}()"
        frame = frame.f_back
    return tuple(reversed(found))


def line_at(code: CodeType, lasti: int) -> int:
    """Return the line of the instruction at an offset, as in ``frame.f_lasti``; 0 if it has none."""
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or 0
    return 0
