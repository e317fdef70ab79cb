"""Read call paths and line numbers from frames and code objects."""

from __future__ import annotations

from types import CodeType, FrameType

from pytest_leakcheck.attribution.object_inspection import name_of
from pytest_leakcheck.model.culprit import Site


def path_to(frame: FrameType | None, call: str = "") -> tuple[Site, ...]:
    """Return the call path that ends at the current line of a frame, outermost first.

    Args:
        frame: The innermost frame; None gives an empty path.
        call: What the current line of that frame calls, as ``name()``; empty if it calls nothing.
    """
    found: list[Site] = []
    while frame is not None:
        code = frame.f_code
        found.append(Site(code.co_filename, frame.f_lineno or code.co_firstlineno, name_of(code), call))
        call = f"{name_of(code)}()"
        frame = frame.f_back
    return tuple(reversed(found))


def line_at(code: CodeType, lasti: int) -> int:
    """Return the line of an instruction; 0 if it has none.

    Args:
        code: The function.
        lasti: Offset of the instruction, as in ``frame.f_lasti``.
    """
    for start, end, line in code.co_lines():
        if start <= lasti < end:
            return line or 0
    return 0
