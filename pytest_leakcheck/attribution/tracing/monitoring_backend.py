"""Report calls and lines through ``sys.monitoring`` (Python 3.12 and later)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.tracing.throttle import STOPPED
from pytest_leakcheck.attribution.tracing.trace_events import QUIET, Event, EventSink, Handler, LineSink, Unavailable

_TOOL_NAME: Final = "pytest-leakcheck"
# Tool ids in order of preference. First 4 and 3, which `sys.monitoring` reserves for no kind of tool.
_TOOL_IDS: Final = (4, 3, 2, 5, 0, 1)
_TOOL_ID_FREED: Final = "the program freed the sys.monitoring tool id of the tracer"
_getframe: Final = sys._getframe


def monitoring() -> Any:
    """Return `sys.monitoring`, which the oldest supported Python does not have."""
    return getattr(sys, "monitoring")  # noqa: B009


def take_tool_id() -> int:
    """Acquire a free tool id of `sys.monitoring`; raise `Unavailable` if all are in use."""
    for tool in _TOOL_IDS:
        if monitoring().get_tool(tool) is None:
            monitoring().use_tool_id(tool, _TOOL_NAME)
            return tool
    holders = ", ".join(str(monitoring().get_tool(tool)) for tool in sorted(_TOOL_IDS))
    raise Unavailable(f"all sys.monitoring tool ids are in use ({holders}): run without one of these tools")


def give_tool_id_back(tool: int, callbacks: Iterable[int]) -> None:
    """Unregister the callbacks and release a tool id, unless the program has freed it: another tool may hold it."""
    if holds_tool_id(tool):
        for event in callbacks:
            monitoring().register_callback(tool, event, None)
        monitoring().free_tool_id(tool)
        # Without this, events that were disabled for this id would stay disabled for the next tool that acquires it.
        monitoring().restart_events()


def holds_tool_id(tool: int) -> bool:
    """Return whether a tool id still belongs to this package."""
    return bool(monitoring().get_tool(tool) == _TOOL_NAME)


class _ThreadState:
    """The state of one traced thread; its first traced frame has depth 1."""

    __slots__ = ("depth", "handler")

    def __init__(self, handler: Handler) -> None:
        self.depth = 0
        self.handler = handler


class Monitored:
    """A backend with one set of callbacks for all threads; other `sys.monitoring` tools can run at the same time."""

    def __init__(self, tracer: EventSink) -> None:
        self._tracer = tracer
        self._throttle = tracer.throttle
        self._disable = monitoring().DISABLE
        self._threads = threading.local()
        self._tool = take_tool_id()
        self._callbacks = self._make_callbacks()
        for event, callback in self._callbacks.items():
            monitoring().register_callback(self._tool, event, callback)
        # C_RETURN and C_RAISE are delivered together with CALL, and are not enabled themselves.
        events = monitoring().events
        self._events = sum(self._callbacks) & ~(events.C_RETURN | events.C_RAISE)

    def prepare(self, handler: Handler) -> None:
        self._threads = threading.local()
        self._threads.state = _ThreadState(handler)

    def install(self) -> None:
        if not holds_tool_id(self._tool):
            return
        if self._tracer.throttle.coarse:
            # Enable the events again that were disabled because an iteration was stopped or a C call was too deep.
            monitoring().restart_events()
        monitoring().set_events(self._tool, self._events)

    def remove(self) -> str:
        if not holds_tool_id(self._tool):
            return _TOOL_ID_FREED
        monitoring().set_events(self._tool, 0)
        return ""

    def close(self) -> None:
        give_tool_id_back(self._tool, self._callbacks)

    def _make_callbacks(self) -> dict[int, Callable[..., object]]:
        events = monitoring().events
        return {
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

    def _on_enter(self, code: CodeType, _offset: int, _error: object = None, up: int = 1) -> object:
        """Handle the entry or resumption of the frame that is ``up`` frames outwards."""
        if QUIET[code.co_filename]:
            return self._disable
        state = self._thread_state()
        depth = state.depth = state.depth + 1
        # Check the depth before reading the frame, because most calls are too deep for a throttled tracer.
        limit = self._throttle.limit
        if depth > limit + 1:
            self._throttle.skip()
            return self._disable if limit == STOPPED else None
        frame = _getframe(up)
        if depth <= limit:
            self._tracer.report(state.handler, depth, "call", frame, None)
        else:
            self._report_as_c(state, "c_call", frame)
        return None

    def _on_leave(self, code: CodeType, _offset: int, _value: object, up: int = 1) -> object:
        """Handle the end or suspension of the frame that is ``up`` frames outwards."""
        if QUIET[code.co_filename]:
            return self._disable
        state = self._thread_state()
        depth = state.depth
        state.depth = depth - 1
        limit = self._throttle.limit
        if depth > limit + 1:
            return self._disable if limit == STOPPED else None
        frame = _getframe(up)
        if depth <= limit:
            self._tracer.report(state.handler, depth, "return", frame, None)
        else:
            self._report_as_c(state, "c_return", frame)
        return None

    def _report_as_c(self, state: _ThreadState, event: Event, frame: FrameType) -> None:
        """Report a frame just below the depth limit as if its caller called a C function."""
        caller = frame.f_back
        if caller is not None and not QUIET[caller.f_code.co_filename]:
            self._tracer.report(state.handler, state.depth, event, caller, frame.f_code)

    def _on_c_call(self, code: CodeType, _offset: int, called: object, _argument: object) -> object:
        kind = type(called)
        if kind is FunctionType or kind is MethodType:
            # A Python function is reported when it is entered.
            return None
        if QUIET[code.co_filename]:
            return self._disable
        state = self._thread_state()
        if state.depth > self._throttle.limit:
            # This disables the call instruction at any depth. If it then runs at a smaller depth, the growth in its
            # call is charged to the calling function itself.
            return self._disable
        self._tracer.report(state.handler, state.depth, "c_call", _getframe(1), called)
        return None

    def _on_c_return(self, code: CodeType, _offset: int, called: object, _argument: object) -> None:
        kind = type(called)
        if kind is FunctionType or kind is MethodType or QUIET[code.co_filename]:
            return
        state = self._thread_state()
        if state.depth <= self._throttle.limit:
            self._tracer.report(state.handler, state.depth, "c_return", _getframe(1), called)

    # PY_THROW and PY_UNWIND cannot be disabled, so the callbacks must not return DISABLE.
    def _on_throw(self, code: CodeType, _offset: int, _error: object) -> None:
        self._on_enter(code, 0, None, 2)

    def _on_unwind(self, code: CodeType, _offset: int, _error: object) -> None:
        self._on_leave(code, 0, None, 2)

    def _thread_state(self) -> _ThreadState:
        try:
            state: _ThreadState = self._threads.state
        except AttributeError:
            state = self._threads.state = _ThreadState(self._tracer.new_handler())
        return state


class MonitoredLines:
    """A backend that reports the lines of one function."""

    def __init__(self, lines: LineSink) -> None:
        self._lines = lines
        self._tool = take_tool_id()
        events = monitoring().events
        # The events of exceptions can only be enabled for all functions at once.
        self._everywhere = events.PY_UNWIND | events.PY_THROW
        self._inside = events.LINE | events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        self._callbacks = self._make_callbacks()
        for event, callback in self._callbacks.items():
            monitoring().register_callback(self._tool, event, callback)

    def install(self, running: list[FrameType]) -> None:  # noqa: ARG002 - events also come from frames that run already
        if not holds_tool_id(self._tool):
            return
        if self._lines.throttle.coarse:
            monitoring().restart_events()
        monitoring().set_local_events(self._tool, self._lines.code, self._inside)
        monitoring().set_events(self._tool, self._everywhere)

    def remove(self) -> str:
        if not holds_tool_id(self._tool):
            return _TOOL_ID_FREED
        monitoring().set_local_events(self._tool, self._lines.code, 0)
        monitoring().set_events(self._tool, 0)
        return ""

    def close(self) -> None:
        give_tool_id_back(self._tool, self._callbacks)

    def _make_callbacks(self) -> dict[int, Callable[..., object]]:
        lines, throttle, code_wanted = self._lines, self._lines.throttle, self._lines.code
        disable = monitoring().DISABLE

        def at_line(_code: CodeType, line: int) -> object:
            lines.step("line", line)
            # Disable the event once tracing is stopped. Otherwise, a long loop would cause an event in every pass.
            return disable if throttle.limit == STOPPED else None

        def entered(code: CodeType, *_: object) -> None:
            if code is code_wanted:
                lines.step("enter")

        def left(code: CodeType, *_: object) -> None:
            if code is code_wanted:
                lines.step("leave")

        events = monitoring().events
        return {
            events.LINE: at_line,
            events.PY_START: entered,
            events.PY_RESUME: entered,
            events.PY_THROW: entered,
            events.PY_RETURN: left,
            events.PY_YIELD: left,
            events.PY_UNWIND: left,
        }
