"""The events of a tracer through ``sys.setprofile``, and lines through ``sys.settrace``: Python 3.10 and 3.11."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.tracing.throttle import SKIPPED, STOPPED
from pytest_leakcheck.attribution.tracing.trace_events import QUIET, Event, EventSink, Handler, LineSink

_Hook = Callable[[FrameType, str, Any], object]
_DISPLACED: Final = (
    "the program called sys.setprofile, whose place a tracer needs, or the interpreter took the tracer out, as it does at "
    "the limit of a recursion"
)

_EVENTS: Final[dict[str, Event]] = {
    "call": "call",
    "return": "return",
    "c_call": "c_call",
    "c_return": "c_return",
    "c_exception": "c_return",
}
_TRACE_DISPLACED: Final = "the program called sys.settrace, whose place is needed to follow lines"


class Profiled:
    """One profile function per thread. What was in force before is displaced while an iteration runs, and put back.

    Threads that ran before are not reached: only a thread itself can set its profile function. Python 3.10 makes a copy of
    a function's variables for each event, so what it deletes may live until its next one.
    """

    def __init__(self, tracer: EventSink) -> None:
        self._tracer = tracer
        self._hook: _Hook | None = None
        # The same object each time, to be known again.
        self._starts = self._start_thread
        self._before: Any = None
        self._before_in_threads: Any = None
        self._active = False
        self._gave_up = False
        self._closed = False

    def prepare(self, handler: Handler, outer: FrameType) -> None:
        # `install` is called from where this is, so it is as deep.
        self._hook = self._new_hook(handler, _frames_below(sys._getframe(), outer))

    def install(self) -> None:
        self._before = sys.getprofile()
        self._before_in_threads = threading.getprofile()
        threading.setprofile(self._starts)
        self._active = True
        self._gave_up = False
        sys.setprofile(self._hook)

    def remove(self) -> str:
        why = ""
        current: Any = sys.getprofile()
        if current is self._hook or (current is None and self._gave_up):
            sys.setprofile(self._before)
        else:
            why = _DISPLACED
        current = threading.getprofile()
        if current is self._starts:
            threading.setprofile(self._before_in_threads)
        else:
            why = _DISPLACED
        # What was made before the counter was first read is dropped after it was last read: next time.
        self._active = False
        return why

    def close(self) -> None:
        self._closed = True
        self._before = self._hook = None

    def _new_hook(self, handler: Handler, depth: int) -> _Hook:
        throttle, tell = self._tracer.throttle, self._tell
        skipped = 0

        def hook(frame: FrameType, kind: str, called: Any) -> None:
            nonlocal depth, skipped
            # Most calls are too deep for a throttled tracer, so that is found out first.
            if kind == "call":
                depth += 1
                if depth <= throttle.limit + 1:
                    tell(handler, depth, frame, kind, called)
                    return
            elif kind == "return":
                depth -= 1
                if depth <= throttle.limit:
                    tell(handler, depth + 1, frame, kind, called)
                return
            elif depth <= throttle.limit:
                tell(handler, depth, frame, kind, called)
                return
            skipped += 1
            if skipped > SKIPPED:
                skipped = 0
                self._give_up_where_late()

        return hook

    def _give_up_where_late(self) -> None:
        """To be called at all costs too much as well: leave this thread alone till the iteration ends."""
        if self._active and self._tracer.is_late():
            sys.setprofile(None)
            self._gave_up = True

    def _tell(self, handler: Handler, depth: int, frame: FrameType, kind: str, called: Any) -> None:
        event = _EVENTS[kind]
        if depth > self._tracer.throttle.limit:
            # A function at the limit looks as one of C.
            caller = frame.f_back
            if caller is None:
                return
            event, frame, called = "c_call" if kind == "call" else "c_return", caller, frame.f_code
        if QUIET[frame.f_code.co_filename]:
            return
        if called is sys.setprofile:
            self._tracer.interrupt(_DISPLACED)
            return
        self._tracer.report(handler, depth, event, frame, called)

    def _start_thread(self, frame: FrameType, kind: str, called: Any) -> None:
        """The first event of a new thread, in that thread."""
        hook = self._new_hook(self._tracer.new_handler(), 0)
        displaced: Any = self._before_in_threads

        def guarded(frame: FrameType, kind: str, called: Any) -> None:
            # The thread may outlive the iteration: only here can what belongs in force be put there.
            if self._closed or (displaced is not None and not self._active):
                sys.setprofile(displaced)
                return
            hook(frame, kind, called)

        sys.setprofile(guarded)
        if self._tracer.throttle.limit != STOPPED:
            guarded(frame, kind, called)


class TracedLines:
    """The lines of one function. A trace function that was in force is displaced while an iteration runs."""

    def __init__(self, lines: LineSink) -> None:
        self._lines = lines
        # The same objects each time, to be known again.
        self._trace = self._on_call
        self._inside = self._on_step
        self._before: Any = None
        self._before_in_threads: Any = None
        self._running: list[tuple[FrameType, Any]] = []
        self._active = False

    def install(self, running: list[FrameType]) -> None:
        self._before = sys.gettrace()
        self._before_in_threads = threading.gettrace()
        # A frame that was entered before gets no call of its own.
        self._running = [(frame, frame.f_trace) for frame in running]
        for frame, _before in self._running:
            frame.f_trace = self._inside
        self._active = True
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def remove(self) -> str:
        why = ""
        current: Any = sys.gettrace()
        if current is self._trace:
            sys.settrace(self._before)
        else:
            why = _TRACE_DISPLACED
        current = threading.gettrace()
        if current is self._trace:
            threading.settrace(self._before_in_threads)  # type: ignore[arg-type, unused-ignore]
        else:
            why = _TRACE_DISPLACED
        self._active = False
        for frame, before in self._running:
            current = frame.f_trace
            if current is self._inside:
                frame.f_trace = before
        self._before = None
        self._running.clear()
        return why

    def close(self) -> None:
        """Nothing is held between iterations."""

    def _on_call(self, frame: FrameType, _kind: str, _argument: Any) -> Any:
        if not self._active:
            # A thread that outlives the iteration: only in it can what belongs in force be put there.
            sys.settrace(self._before_in_threads)
            return None
        if frame.f_code is not self._lines.code:
            return None
        self._lines.step("enter")
        return self._inside

    def _on_step(self, frame: FrameType, kind: str, _argument: Any) -> Any:
        if self._active:
            if kind == "line":
                self._lines.step("line", frame.f_lineno)
            elif kind == "return":
                self._lines.step("leave")
        return self._inside


def _frames_below(frame: FrameType | None, outer: FrameType) -> int:
    count = 0
    while frame is not None and frame is not outer:
        count += 1
        frame = frame.f_back
    return count
