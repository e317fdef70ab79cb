"""Read call paths and line numbers from frames and code objects."""

from __future__ import annotations

from types import CodeType, FrameType

from pytest_leakcheck.attribution.object_inspection import name_of
from pytest_leakcheck.model.culprit import Site


def path_to(frame: FrameType | None, call: str = "") -> tuple[Site, ...]:
    """The call path that ends in this frame's current line, outermost first; ``call`` is what that line calls."""
    found: list[Site] = []
    while frame is not None:
        code = frame.f_code
        found.append(Site(code.co_filename, frame.f_lineno or code.co_firstlineno, name_of(code), call))
        call = f"{name_of(code)}()"
        frame = frame.f_back
    return tuple(reversed(found))


def line_at(code: CodeType, lasti: int) -> int:
    """The line of an instruction, by its place in the code as ``frame.f_lasti`` has it; 0 if it has none."""
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or 0
    return 0
