"""Events of a traced iteration, and the interfaces of those that make, pass on and receive them.

The tracers and their backends import this and not each other.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Literal, Protocol

from pytest_leakcheck.attribution.call_paths import is_harness
from pytest_leakcheck.attribution.tracing.throttle import Throttle

# "begin" and "end" come once, before and after all others, with the iteration's outer frame; "cut" in place of "end" where
# the last part of the iteration was not looked at.
Event = Literal["begin", "call", "return", "c_call", "c_return", "end", "cut"]
# The event, the frame (entered, left, or calling) and, where C is called or returns, what is called.
Handler = Callable[[Event, FrameType, Any], None]
_OURS: Final = str(Path(__file__).parents[2]) + "/"
# A frame of the function is entered or resumed, comes to a line, or is left or suspended.
Step = Literal["enter", "line", "leave"]


class Unavailable(RuntimeError):
    """The interpreter has no place left for a tracer."""


class Listener(Protocol):
    """What a tracer reports to."""

    def begin(self) -> None:
        """An iteration begins: what happened since the last one was not traced."""

    def handler(self) -> Handler:
        """Asked for once by each thread: what is called at each of its events."""

    def became_coarse(self) -> None:
        """From now on some events are left out."""


class Backend(Protocol):
    """One way to get at the events."""

    def prepare(self, handler: Handler, outer: FrameType) -> None:
        """All that takes memory."""

    def install(self) -> None: ...
    def remove(self) -> str:
        """Returns why not all events were seen; empty where they were."""

    def close(self) -> None: ...


class _Own(dict[str, bool]):
    """Whether a file is one of this package, by its name."""

    def __missing__(self, file: str) -> bool:
        own = self[file] = file.startswith(_OURS)
        return own


OWN: Final = _Own()


class _Quiet(dict[str, bool]):
    """Whether a file is of this package or of the test runner, whose calls lead to the test and are not of interest."""

    def __missing__(self, file: str) -> bool:
        quiet = self[file] = is_harness(file)
        return quiet


QUIET: Final = _Quiet()


def is_of_the_program(error: BaseException) -> bool:
    """Whether a signal's handler raised it, which may run in the middle of a listener and means the program."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = _codes_of_signal_handlers()
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if any(traceback.tb_frame.f_code is code for code in handlers):
            return True
        traceback = traceback.tb_next
    return False


def _codes_of_signal_handlers() -> list[CodeType]:
    found = []
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            found.append(code)
    return found


class LineBackend(Protocol):
    """One way to get at the lines."""

    def install(self, running: list[FrameType]) -> None:
        """Args: running: frames of the function that run already, innermost first."""

    def remove(self) -> str:
        """Returns why not all events were seen; empty where they were."""

    def close(self) -> None: ...


class EventSink(Protocol):
    """What a `Backend` passes events to: the tracer."""

    throttle: Throttle

    def new_handler(self) -> Handler:
        """Return what one thread reports to."""

    def report(self, handler: Handler, depth: int, event: Event, frame: FrameType, called: Any) -> None:
        """Pass one event to the listener."""

    def is_late(self) -> bool:
        """Return whether the iteration has taken so long that nothing more is reported."""

    def interrupt(self, why: str) -> None:
        """Report nothing more, in this iteration and in later ones."""


class LineSink(Protocol):
    """What a `LineBackend` passes lines to: the line tracer.

    Attributes:
        code: The function that is followed.
    """

    throttle: Throttle
    code: CodeType

    def step(self, kind: Step, line: int = 0) -> None:
        """Take what a frame of the function does now."""
