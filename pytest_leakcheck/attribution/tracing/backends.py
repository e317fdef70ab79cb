"""Report calls and lines.

They come through `sys.monitoring` (Python 3.12 and later), else by `sys.setprofile` and
`sys.settrace`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.tracing import tracer
from pytest_leakcheck.attribution.tracing.tracer import QUIET, STOPPED

_Hook = Callable[[FrameType, str, Any], object]
_DISPLACED: Final = (
    "the program called sys.setprofile, which the tracer uses, or the interpreter removed the tracer, as it does at the "
    "recursion limit"
)
_TRACE_DISPLACED: Final = "the program called sys.settrace, which line tracing uses"


class ProfiledCalls(tracer.CallTracer):
    """A tracer with one profile function per thread that began after it.

    An earlier profile function is restored after iterations.
    """

    def __init__(
        self, listener: tracer.Listener, plain_seconds: float, longest: float = 0.0
    ) -> None:
        super().__init__(listener, plain_seconds, longest)
        self._hook: _Hook | None = None
        # A bound method is a new object at each access; this one is compared by identity in
        # `_remove`.
        self._thread_hook = self._start_thread
        self._before: Any = None
        self._before_in_threads: Any = None
        self._active = False
        self._gave_up = False
        self._closed = False

    def _prepare(self, handler: tracer.Handler) -> None:
        # The hook would make objects of these frames, which run already.
        tracer.outer_frame(sys._getframe())
        self._hook = self._new_hook(handler)

    def _install(self) -> None:
        self._before = sys.getprofile()
        self._before_in_threads = threading.getprofile()
        threading.setprofile(self._thread_hook)
        self._active = True
        self._gave_up = False
        sys.setprofile(self._hook)

    def _remove(self) -> str:
        # The hook is kept until the next `_prepare`: releasing it here would change the counter.
        self._active = False
        current: Any = sys.getprofile()
        is_ours = current is self._hook or (current is None and self._gave_up)
        if is_ours:
            sys.setprofile(self._before)
        current = threading.getprofile()
        if current is self._thread_hook:
            threading.setprofile(self._before_in_threads)
            return "" if is_ours else _DISPLACED
        return _DISPLACED

    def close(self) -> None:
        super().close()
        self._closed = True
        self._before = self._hook = None

    def _new_hook(self, handler: tracer.Handler) -> _Hook:
        thread = tracer.TracedThread(handler)

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
            # The thread may outlive the iteration. Only the thread itself can restore its profile
            # function.
            if self._closed or (displaced is not None and not self._active):
                sys.setprofile(displaced)
                return
            hook(frame, kind, called)

        sys.setprofile(guarded)
        if self.throttle.limit != STOPPED:
            guarded(frame, kind, called)


class TracedLines(tracer.LineTracer):
    """A tracer of the lines of one function that restores a trace function that was set before."""

    def __init__(self, code: CodeType, read: Callable[[], int], plain_seconds: float) -> None:
        super().__init__(code, read, plain_seconds)
        # A bound method is a new object at each access; these are compared by identity in
        # `_remove`.
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
        self._active = False
        current: tuple[Any, Any] = sys.gettrace(), threading.gettrace()
        of_thread, of_new_threads = (one is self._trace_function for one in current)
        if of_thread:
            sys.settrace(self._before)
        if of_new_threads:
            threading.settrace(self._before_in_threads)  # type: ignore[arg-type, unused-ignore]
        for frame, before in self._running:
            if frame.f_trace is self._line_function:
                frame.f_trace = before
        self._before = None
        self._running.clear()
        return "" if of_thread and of_new_threads else _TRACE_DISPLACED

    def _on_call(self, frame: FrameType, _kind: str, _argument: Any) -> Any:
        if not self._active:
            # This thread outlived the iteration. Only the thread itself can restore its trace
            # function.
            sys.settrace(self._before_in_threads)
            return None
        if frame.f_code is not self._code:
            return None
        self.step("enter", frame.f_lineno)
        return self._line_function

    def _on_step(self, frame: FrameType, kind: str, _argument: Any) -> Any:
        if self._active:
            if kind == "line":
                self.step("line", frame.f_lineno)
            elif kind == "return":
                self.step("leave", frame.f_lineno)
        return self._line_function


_TOOL_NAME: Final = "pytest-leakcheck"
# Tool ids in order of preference. First 4 and 3, which `sys.monitoring` reserves for no kind of
# tool.
_TOOL_IDS: Final = (4, 3, 2, 5, 0, 1)
_TOOL_ID_FREED: Final = "the program freed the sys.monitoring tool id of the tracer"
_getframe: Final = sys._getframe
# The oldest supported Python does not have it.
_MONITORING: Final[Any] = getattr(sys, "monitoring", None)


class _Tool:
    """A free tool id of `sys.monitoring` with its callbacks."""

    def __init__(self, callbacks: Mapping[int, Callable[..., object]]) -> None:
        """Acquire it; raise `RuntimeError` if all are in use."""
        free = [number for number in _TOOL_IDS if _MONITORING.get_tool(number) is None]
        if not free:
            holders = ", ".join(str(_MONITORING.get_tool(number)) for number in sorted(_TOOL_IDS))
            raise RuntimeError(
                f"all sys.monitoring tool ids are in use ({holders}): run without one of these tools"
            )
        self.number = free[0]
        _MONITORING.use_tool_id(self.number, _TOOL_NAME)
        self._callbacks = callbacks
        for event, callback in callbacks.items():
            _MONITORING.register_callback(self.number, event, callback)

    @property
    def is_held(self) -> bool:
        """Whether the id is still this package's: the program may free it for another tool."""
        return bool(_MONITORING.get_tool(self.number) == _TOOL_NAME)

    def set_events(self, everywhere: int, code: CodeType | None = None, inside: int = 0) -> str:
        """Report these events, and others in one function; return why not, empty if possible."""
        if not self.is_held:
            return _TOOL_ID_FREED
        if code is not None:
            _MONITORING.set_local_events(self.number, code, inside)
        _MONITORING.set_events(self.number, everywhere)
        return ""

    def close(self) -> None:
        if self.is_held:
            for event in self._callbacks:
                _MONITORING.register_callback(self.number, event, None)
            _MONITORING.free_tool_id(self.number)
            # Without this, events that were disabled for this id would stay so for the next tool
            # that acquires it.
            _MONITORING.restart_events()


class MonitoredCalls(tracer.CallTracer):
    """A tracer with one set of callbacks for all threads, beside other `sys.monitoring` tools."""

    def __init__(
        self, listener: tracer.Listener, plain_seconds: float, longest: float = 0.0
    ) -> None:
        super().__init__(listener, plain_seconds, longest)
        self._disable = _MONITORING.DISABLE
        self._threads = threading.local()
        events = _MONITORING.events
        callbacks: dict[int, Callable[..., object]] = {
            events.PY_START: self._on_enter,
            events.PY_RESUME: self._on_enter,
            events.PY_THROW: self._on_throw,
            events.PY_RETURN: self._on_leave,
            events.PY_YIELD: self._on_leave,
            events.PY_UNWIND: self._on_unwind,
            events.CALL: self._on_c_call,
            events.C_RETURN: self._on_c_return,
            events.C_RAISE: self._on_c_return,
        }
        self._tool = _Tool(callbacks)
        # C_RETURN and C_RAISE are delivered together with CALL, and are not enabled themselves.
        self._events = sum(callbacks) & ~(events.C_RETURN | events.C_RAISE)

    def _prepare(self, handler: tracer.Handler) -> None:
        self._threads = threading.local()
        self._threads.current = tracer.TracedThread(handler)

    def _install(self) -> None:
        if self.throttle.coarse:
            # Enable the events again that were disabled because an iteration was stopped or a C
            # call was too deep.
            _MONITORING.restart_events()
        self._tool.set_events(self._events)

    def _remove(self) -> str:
        return self._tool.set_events(0)

    def close(self) -> None:
        super().close()
        self._tool.close()

    def _on_enter(self, code: CodeType, _offset: int, _error: object = None, up: int = 1) -> object:
        """Handle the entry or resumption of the frame that is ``up`` frames outwards."""
        if not QUIET[code.co_filename]:
            self.enter(self._thread(), _getframe(up))
            if not self.throttle.cut:
                return None
        return self._disable

    def _on_leave(self, code: CodeType, _offset: int, _value: object, up: int = 1) -> object:
        """Handle the end or suspension of the frame that is ``up`` frames outwards."""
        if not QUIET[code.co_filename]:
            self.leave(self._thread(), _getframe(up))
            if not self.throttle.cut:
                return None
        return self._disable

    def _on_c_call(self, code: CodeType, _offset: int, called: object, _argument: object) -> object:
        kind = type(called)
        if kind is FunctionType or kind is MethodType:
            # A Python function is reported when it is entered.
            return None
        if QUIET[code.co_filename]:
            return self._disable
        thread = self._thread()
        if thread.depth > self.throttle.limit:
            # This disables the call instruction at any depth. If it then runs at a smaller depth,
            # the growth in its call is charged to the calling function itself.
            return self._disable
        self.report_c(thread, "c_call", _getframe(1), called)
        return None

    def _on_c_return(self, code: CodeType, _offset: int, called: object, _argument: object) -> None:
        kind = type(called)
        if not (kind is FunctionType or kind is MethodType or QUIET[code.co_filename]):
            self.report_c(self._thread(), "c_return", _getframe(1), called)

    # PY_THROW and PY_UNWIND cannot be disabled, so the callbacks must not return DISABLE.
    def _on_throw(self, code: CodeType, _offset: int, _error: object) -> None:
        self._on_enter(code, 0, None, 2)

    def _on_unwind(self, code: CodeType, _offset: int, _error: object) -> None:
        self._on_leave(code, 0, None, 2)

    def _thread(self) -> tracer.TracedThread:
        try:
            thread: tracer.TracedThread = self._threads.current
        except AttributeError:
            thread = self._threads.current = tracer.TracedThread(self.listener.handler())
        return thread


class MonitoredLines(tracer.LineTracer):
    """A tracer of the lines of one function."""

    def __init__(self, code: CodeType, read: Callable[[], int], plain_seconds: float) -> None:
        super().__init__(code, read, plain_seconds)
        events = _MONITORING.events
        # The events of exceptions can only be enabled for all functions at once.
        self._everywhere = events.PY_UNWIND | events.PY_THROW
        self._inside = (
            events.LINE | events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        )
        self._tool = _Tool(self._make_callbacks())

    def _install(self, running: list[FrameType]) -> None:  # noqa: ARG002 - events also come from frames that run already
        if self.throttle.coarse:
            _MONITORING.restart_events()
        self._tool.set_events(self._everywhere, self._code, self._inside)

    def _remove(self) -> str:
        return self._tool.set_events(0, self._code)

    def close(self) -> None:
        super().close()
        self._tool.close()

    def _make_callbacks(self) -> dict[int, Callable[..., object]]:
        step, throttle, code_wanted = self.step, self.throttle, self._code
        disable = _MONITORING.DISABLE

        def at_line(_code: CodeType, line: int) -> object:
            step("line", line)
            # Disable the event once tracing is stopped. Otherwise, a long loop would cause an event
            # in every pass.
            return disable if throttle.limit == STOPPED else None

        def entered(code: CodeType, *_: object) -> None:
            if code is code_wanted:
                step("enter", code.co_firstlineno)

        def left(code: CodeType, *_: object) -> None:
            if code is code_wanted:
                step("leave", code.co_firstlineno)

        events = _MONITORING.events
        return {
            events.LINE: at_line,
            events.PY_START: entered,
            events.PY_RESUME: entered,
            events.PY_THROW: entered,
            events.PY_RETURN: left,
            events.PY_YIELD: left,
            events.PY_UNWIND: left,
        }


if sys.version_info >= (3, 12):
    Tracer = MonitoredCalls
    Lines = MonitoredLines
else:
    Tracer = ProfiledCalls
    Lines = TracedLines
