"""The events of a tracer through ``sys.monitoring``: Python 3.12 and later."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.tracing.throttle import SKIPPED, STOPPED
from pytest_leakcheck.attribution.tracing.trace_events import QUIET, Event, EventSink, Handler, LineSink, Unavailable

_NAME: Final = "pytest-leakcheck"
# Those that no kind of tool is meant to have come first.
_IDS: Final = (4, 3, 2, 5, 0, 1)
_FREED: Final = "the program freed the tool id of sys.monitoring that a tracer held"
_getframe: Final = sys._getframe


def monitoring() -> Any:
    """`sys.monitoring`, which the oldest supported Python does not have."""
    return getattr(sys, "monitoring")  # noqa: B009


def take_tool_id() -> int:
    """
    Raises:
        Unavailable: All are in use.
    """
    for tool in _IDS:
        if monitoring().get_tool(tool) is None:
            monitoring().use_tool_id(tool, _NAME)
            return tool
    holders = ", ".join(str(monitoring().get_tool(tool)) for tool in sorted(_IDS))
    raise Unavailable(f"all tool ids of sys.monitoring are in use ({holders}): run without one of these tools")


def give_tool_id_back(tool: int, callbacks: Iterable[int]) -> None:
    """Where the program has taken it away meanwhile, it is another's."""
    if holds_tool_id(tool):
        for event in callbacks:
            monitoring().register_callback(tool, event, None)
        monitoring().free_tool_id(tool)
        # What was disabled for this id would be so for the next tool that takes it.
        monitoring().restart_events()


def holds_tool_id(tool: int) -> bool:
    return bool(monitoring().get_tool(tool) == _NAME)


class _Thread:
    """How deep a thread is below the first frame that was seen of it, and whom to tell."""

    __slots__ = ("depth", "handler", "skipped")

    def __init__(self, handler: Handler) -> None:
        self.depth = 0
        self.skipped = 0
        self.handler = handler


class Monitored:
    """One set of callbacks for all threads, beside those of any other tool."""

    def __init__(self, tracer: EventSink) -> None:
        self._tracer = tracer
        self._throttle = tracer.throttle
        self._disable = monitoring().DISABLE
        self._threads = threading.local()
        self._tool = take_tool_id()
        self._callbacks = self._make_callbacks()
        for event, callback in self._callbacks.items():
            monitoring().register_callback(self._tool, event, callback)
        # The returns of C come with its calls, and are not asked for.
        events = monitoring().events
        self._events = sum(self._callbacks) & ~(events.C_RETURN | events.C_RAISE)

    def prepare(self, handler: Handler, outer: FrameType) -> None:  # noqa: ARG002 - the first frame that is seen is it
        self._threads = threading.local()
        self._threads.state = _Thread(handler)

    def install(self) -> None:
        if not holds_tool_id(self._tool):
            return
        if self._tracer.throttle.coarse:
            # What was disabled when the last iteration was stopped.
            monitoring().restart_events()
        monitoring().set_events(self._tool, self._events)

    def remove(self) -> str:
        if not holds_tool_id(self._tool):
            return _FREED
        monitoring().set_events(self._tool, 0)
        return ""

    def close(self) -> None:
        give_tool_id_back(self._tool, self._callbacks)

    def _make_callbacks(self) -> dict[int, Callable[..., object]]:
        events = monitoring().events
        return {
            events.PY_START: self._entered,
            events.PY_RESUME: self._entered,
            events.PY_THROW: self._thrown_into,
            events.PY_RETURN: self._left,
            events.PY_YIELD: self._left,
            events.PY_UNWIND: self._unwound,
            events.CALL: self._calls,
            events.C_RETURN: self._returned,
            events.C_RAISE: self._returned,
        }

    def _entered(self, code: CodeType, _offset: int, _error: object = None, up: int = 1) -> object:
        if QUIET[code.co_filename]:
            return self._disable
        state = self._state()
        depth = state.depth = state.depth + 1
        # Most calls are too deep for a throttled tracer, so that is found out first.
        limit = self._throttle.limit
        if depth > limit + 1:
            state.skipped += 1
            if state.skipped > SKIPPED:
                state.skipped = 0
                self._tracer.is_late()
            return self._disable if limit == STOPPED else None
        frame = _getframe(up)
        if depth <= limit:
            self._tracer.report(state.handler, depth, "call", frame, None)
        else:
            self._at_limit(state, "c_call", frame)
        return None

    def _left(self, code: CodeType, _offset: int, _value: object, up: int = 1) -> object:
        if QUIET[code.co_filename]:
            return self._disable
        state = self._state()
        depth = state.depth
        state.depth = depth - 1
        limit = self._throttle.limit
        if depth > limit + 1:
            return self._disable if limit == STOPPED else None
        frame = _getframe(up)
        if depth <= limit:
            self._tracer.report(state.handler, depth, "return", frame, None)
        else:
            self._at_limit(state, "c_return", frame)
        return None

    def _at_limit(self, state: _Thread, event: Event, frame: FrameType) -> None:
        caller = frame.f_back
        if caller is not None and not QUIET[caller.f_code.co_filename]:
            self._tracer.report(state.handler, state.depth, event, caller, frame.f_code)

    def _calls(self, code: CodeType, _offset: int, called: object, _argument: object) -> object:
        kind = type(called)
        if kind is FunctionType or kind is MethodType:
            # Seen when it is entered.
            return None
        if QUIET[code.co_filename]:
            return self._disable
        state = self._state()
        if state.depth > self._throttle.limit:
            # Where the same line runs less deep, what its call does is then its function's own doing.
            return self._disable
        self._tracer.report(state.handler, state.depth, "c_call", _getframe(1), called)
        return None

    def _returned(self, code: CodeType, _offset: int, called: object, _argument: object) -> None:
        kind = type(called)
        if kind is FunctionType or kind is MethodType or QUIET[code.co_filename]:
            return
        state = self._state()
        if state.depth <= self._throttle.limit:
            self._tracer.report(state.handler, state.depth, "c_return", _getframe(1), called)

    # These two cannot be disabled.
    def _thrown_into(self, code: CodeType, _offset: int, _error: object) -> None:
        self._entered(code, 0, None, 2)

    def _unwound(self, code: CodeType, _offset: int, _error: object) -> None:
        self._left(code, 0, None, 2)

    def _state(self) -> _Thread:
        try:
            state: _Thread = self._threads.state
        except AttributeError:
            state = self._threads.state = _Thread(self._tracer.new_handler())
        return state


class MonitoredLines:
    """The lines of one function."""

    def __init__(self, lines: LineSink) -> None:
        self._lines = lines
        self._tool = take_tool_id()
        events = monitoring().events
        # Exceptions are only to be had of all functions.
        self._everywhere = events.PY_UNWIND | events.PY_THROW
        self._inside = events.LINE | events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        self._callbacks = self._make_callbacks()
        for event, callback in self._callbacks.items():
            monitoring().register_callback(self._tool, event, callback)

    def install(self, running: list[FrameType]) -> None:  # noqa: ARG002 - frames that run already are reached as well
        if not holds_tool_id(self._tool):
            return
        if self._lines.throttle.coarse:
            monitoring().restart_events()
        monitoring().set_local_events(self._tool, self._lines.code, self._inside)
        monitoring().set_events(self._tool, self._everywhere)

    def remove(self) -> str:
        if not holds_tool_id(self._tool):
            return _FREED
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
            # A loop of a million rounds makes as many events.
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
