"""Define trace events and the interfaces of backends, tracers and listeners.

A backend gets events from the interpreter, a tracer passes them on within limits, and a listener evaluates them.
Backends import this module and not the tracers, because the tracers import the backends.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Literal, Protocol

from pytest_leakcheck.attribution.call_paths import is_harness, is_own
from pytest_leakcheck.attribution.tracing.throttle import Throttle

# "begin" and "end" come once per iteration, before and after all other events. Their frame is the iteration's outer
# frame: the innermost frame outside of this package when the iteration begins. "cut" comes in place of "end" if the
# last part of the iteration was not traced.
Event = Literal["begin", "call", "return", "c_call", "c_return", "end", "cut"]
# Arguments: the event; the frame that is entered or left, or that calls a C function; the C function, or the code
# object that is reported in its place. The third argument has no meaning at other events.
Handler = Callable[[Event, FrameType, Any], None]
# Ends with a separator, so that a folder whose name only begins like this one does not match.
_PACKAGE_FOLDER: Final = str(Path(__file__).parents[2]) + "/"
# A frame is entered or resumed, reaches a line, or is left or suspended.
Step = Literal["enter", "line", "leave"]


class Unavailable(RuntimeError):
    """No tool id of ``sys.monitoring`` is free for a tracer."""


class Listener(Protocol):
    """Receiver of a tracer's events."""

    def begin(self) -> None:
        """Begin an iteration. What happened between the previous iteration and this one was not traced."""

    def handler(self) -> Handler:
        """Return the function to call at each event of one thread. The tracer calls this method once per thread."""

    def became_coarse(self) -> None:
        """Take note that some events are left out from now on."""


class Backend(Protocol):
    """Source of call events."""

    def prepare(self, handler: Handler) -> None:
        """Allocate the memory that the backend needs, before the listener first reads its counter."""

    def install(self) -> None: ...
    def remove(self) -> str:
        """Stop reporting, and return why some events may have been missed; empty if none were."""

    def close(self) -> None: ...


class _OwnFiles(dict[str, bool]):
    def __missing__(self, file: str) -> bool:
        own = self[file] = file.startswith(_PACKAGE_FOLDER)
        return own


OWN: Final = _OwnFiles()


class _QuietFiles(dict[str, bool]):
    """Cache by file name: whether a file is of this package, pytest or a plugin; its events are not reported."""

    def __missing__(self, file: str) -> bool:
        quiet = self[file] = is_harness(file)
        return quiet


QUIET: Final = _QuietFiles()


def is_left_out(called: object) -> bool:
    """Return whether a function reported as a C function is one of the program, whose own events are left out."""
    return type(called) is CodeType and is_own(called.co_filename)


def is_of_the_program(error: BaseException) -> bool:
    """Return whether an error is the program's: KeyboardInterrupt, or of a signal handler that ran in a listener."""
    if isinstance(error, KeyboardInterrupt):
        return True
    handlers = _list_signal_handlers()
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        if any(traceback.tb_frame.f_code is code for code in handlers):
            return True
        traceback = traceback.tb_next
    return False


def _list_signal_handlers() -> list[CodeType]:
    found = []
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if isinstance(code, CodeType):
            found.append(code)
    return found


class LineBackend(Protocol):
    """Source of the line events of one function."""

    def install(self, running: list[FrameType]) -> None:
        """Begin to report lines; frames of the function that run already are given innermost first."""

    def remove(self) -> str:
        """Stop reporting, and return why some events may have been missed; empty if none were."""

    def close(self) -> None: ...


class EventSink(Protocol):
    """The tracer as a `Backend` sees it: receiver of events."""

    throttle: Throttle

    def new_handler(self) -> Handler: ...

    def report(self, handler: Handler, depth: int, event: Event, frame: FrameType, called: Any) -> None: ...

    def interrupt(self, why: str) -> None:
        """Report nothing more, in this iteration and in later ones."""


class LineSink(Protocol):
    """The line tracer as a `LineBackend` sees it: receiver of line events."""

    throttle: Throttle
    code: CodeType

    def step(self, kind: Step, line: int = 0) -> None:
        """Handle what a frame of the function does now; line 0 stands for the function's first line."""
