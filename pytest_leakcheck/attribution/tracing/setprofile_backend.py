"""Report calls through ``sys.setprofile`` and lines through ``sys.settrace`` (Python 3.11)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

from pytest_leakcheck.attribution.tracing.line_tracer import LineTracer
from pytest_leakcheck.attribution.tracing.tracer import (
    QUIET,
    STOPPED,
    CallTracer,
    Handler,
    Listener,
    TracedThread,
    outer_frame,
)

_Hook = Callable[[FrameType, str, Any], object]
_DISPLACED: Final = (
    "the program called sys.setprofile, which the tracer uses, or the interpreter removed the tracer, as it does at the "
    "recursion limit"
)
_TRACE_DISPLACED: Final = "the program called sys.settrace, which line tracing uses"


class ProfiledCalls(CallTracer):
    """A tracer with one profile function per thread that began after it; an earlier one is restored after iterations."""

    def __init__(self, listener: Listener, plain_seconds: float = 0.0, longest: float = 0.0) -> None:
        super().__init__(listener, plain_seconds, longest)
        self._hook: _Hook | None = None
        # A bound method is a new object at each access; this one is compared by identity in `_remove`.
        self._thread_hook = self._start_thread
        self._before: Any = None
        self._before_in_threads: Any = None
        self._active = False
        self._gave_up = False
        self._closed = False

    def _prepare(self, handler: Handler) -> None:
        # The hook would make objects of these frames, which run already.
        outer_frame(sys._getframe())
        self._hook = self._new_hook(handler)

    def _install(self) -> None:
        self._before = sys.getprofile()
        self._before_in_threads = threading.getprofile()
        threading.setprofile(self._thread_hook)
        self._active = True
        self._gave_up = False
        sys.setprofile(self._hook)

    def _remove(self) -> str:
        why = ""
        current: Any = sys.getprofile()
        if current is self._hook or (current is None and self._gave_up):
            sys.setprofile(self._before)
        else:
            why = _DISPLACED
        current = threading.getprofile()
        if current is self._thread_hook:
            threading.setprofile(self._before_in_threads)
        else:
            why = _DISPLACED
        # The hook is kept until the next `_prepare`: releasing it here would change the counter.
        self._active = False
        return why

    def close(self) -> None:
        super().close()
        self._closed = True
        self._before = self._hook = None

    def _new_hook(self, handler: Handler) -> _Hook:
        thread = TracedThread(handler)

        def hook(frame: FrameType, kind: str, called: Any) -> None:
            if QUIET[frame.f_code.co_filename]:
                return
            if kind == "call":
                self.enter(thread, frame)
            elif kind == "return":
                self.leave(thread, frame)
            elif called is sys.setprofile:
                self.interrupt(_DISPLACED)
            else:
                self.report_c(thread, "c_call" if kind == "c_call" else "c_return", frame, called)
            if self.throttle.cut and self._active:
                # The hook is expensive even if it reports nothing.
                sys.setprofile(None)
                self._gave_up = True

        return hook

    def _start_thread(self, frame: FrameType, kind: str, called: Any) -> None:
        hook = self._new_hook(self.listener.handler())
        displaced: Any = self._before_in_threads

        def guarded(frame: FrameType, kind: str, called: Any) -> None:
            # The thread may outlive the iteration. Only the thread itself can restore its profile function.
            if self._closed or (displaced is not None and not self._active):
                sys.setprofile(displaced)
                return
            hook(frame, kind, called)

        sys.setprofile(guarded)
        if self.throttle.limit != STOPPED:
            guarded(frame, kind, called)


class TracedLines(LineTracer):
    """A tracer of the lines of one function that restores a trace function that was set before."""

    def __init__(self, code: CodeType, read: Callable[[], int], plain_seconds: float = 0.0) -> None:
        super().__init__(code, read, plain_seconds)
        # A bound method is a new object at each access; these are compared by identity in `_remove`.
        self._trace_function = self._on_call
        self._line_function = self._on_step
        self._before: Any = None
        self._before_in_threads: Any = None
        self._running: list[tuple[FrameType, Any]] = []
        self._active = False

    def _install(self, running: list[FrameType]) -> None:
        self._before = sys.gettrace()
        self._before_in_threads = threading.gettrace()
        # A frame that was entered earlier gets no "call" event, so its trace function is set here.
        self._running = [(frame, frame.f_trace) for frame in running]
        for frame, _before in self._running:
            frame.f_trace = self._line_function
        self._active = True
        threading.settrace(self._trace_function)
        sys.settrace(self._trace_function)

    def _remove(self) -> str:
        why = ""
        current: Any = sys.gettrace()
        if current is self._trace_function:
            sys.settrace(self._before)
        else:
            why = _TRACE_DISPLACED
        current = threading.gettrace()
        if current is self._trace_function:
            threading.settrace(self._before_in_threads)  # type: ignore[arg-type, unused-ignore]
        else:
            why = _TRACE_DISPLACED
        self._active = False
        for frame, before in self._running:
            current = frame.f_trace
            if current is self._line_function:
                frame.f_trace = before
        self._before = None
        self._running.clear()
        return why

    def _on_call(self, frame: FrameType, _kind: str, _argument: Any) -> Any:
        if not self._active:
            # This thread outlived the iteration. Only the thread itself can restore its trace function.
            sys.settrace(self._before_in_threads)
            return None
        if frame.f_code is not self._code:
            return None
        self.step("enter")
        return self._line_function

    def _on_step(self, frame: FrameType, kind: str, _argument: Any) -> Any:
        if self._active:
            if kind == "line":
                self.step("line", frame.f_lineno)
            elif kind == "return":
                self.step("leave")
        return self._line_function
