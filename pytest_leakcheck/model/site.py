"""Where in the code something happens: a line, the function it is in, and what that calls."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType, FrameType


@dataclass(frozen=True, slots=True)
class Site:
    """One line of a call path.

    Attributes:
        file: As the code object has it, mostly an absolute path.
        line: From 1.
        function: The function that the line is in; with its class from Python 3.11 on.
        call: What is called in that line, as ``name()``; empty where the line itself does it.
    """

    file: str
    line: int
    function: str
    call: str = ""


def name_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)


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
