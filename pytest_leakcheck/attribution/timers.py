"""Find timers that are due: `threading.Timer`, and calls that an asyncio loop has scheduled.

What only they hold is released when they end.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache, partial
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.inspection import MAX_PARTS, instance_dict, is_shared, walk
from pytest_leakcheck.probes import clock

# A callback that uses one of these may start the next timer, which then holds the same.
_STARTS_TIMER: Final = frozenset({"Timer", "call_at", "call_later"})
_SUSPENDED: Final = (AsyncGeneratorType, CoroutineType, GeneratorType)
_FUTURES: Final = ("Future", "_PyFuture", "Task", "_PyTask")
# Seconds to wait until a thread waits.
_MAX_START_SECONDS: Final = 1.0
_START_CHECK_SECONDS: Final = 0.0001


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that has not ended.

    Attributes:
        seconds: The interval of a thread; of a scheduled call, how long it still waits.
        held: The timer with what it is made with, also the numbers in that; empty if something else
            holds the timer too.
        thread: The native id of its thread; 0 if it has none.
    """

    seconds: float
    held: tuple[object, ...]
    thread: int = 0


def find_timers(earlier: Collection[int]) -> list[Timer]:
    """List the timers that are due, without those that may start another.

    `earlier`: the native ids of threads whose timers are left out too.
    """
    return [*_threads(earlier), *_scheduled_calls()]


def _threads(earlier: Collection[int]) -> Iterator[Timer]:
    for thread in threading.enumerate():
        if type(thread) is not threading.Timer or (thread.native_id or 0) in earlier:
            continue
        # The program may have replaced the attributes.
        own: dict[str, Any] = instance_dict(thread) or {}
        interval: Any = own.get("interval")
        finished, function = own.get("finished"), own.get("function")
        if type(finished) is not threading.Event or finished.is_set() or _starts_timer(function):
            continue
        if type(interval) in (int, float):
            # The list of all threads is one more.
            alone = _references_to(thread) <= _of_thread() + 1
            held = (
                (thread, *_parts_of_call(function, own.get("args"), own.get("kwargs")))
                if alone
                else ()
            )
            yield Timer(float(interval), held, thread.native_id or 0)


def _scheduled_calls() -> Iterator[Timer]:
    events: Any = sys.modules.get("asyncio.events")
    # Another loop may have a time of its own.
    loop_type = getattr(sys.modules.get("asyncio"), "SelectorEventLoop", None)
    if events is None or loop_type is None:
        return
    objects = gc.get_objects()
    calls = [one for one in objects if type(one) is events.TimerHandle]
    new = {id(one) for one in objects if type(one) is loop_type}
    del objects
    futures = _future_types()
    # How many references Python adds to count them depends on its version; the loop's list is one
    # more.
    most = _count_references([object()])[0] + 1
    for call, count in zip(calls, _count_references(calls), strict=True):
        alone, loop, function = count <= most, call._loop, call._callback
        # A loop that the test makes and leaves ends nothing.
        runs = (
            type(loop) is loop_type
            and not loop._closed
            and (id(loop) not in new or loop._thread_id is not None)
        )
        if not runs or call._cancelled or not call._scheduled or _starts_timer(function):
            continue
        held = _parts_of_call(function, call._args, None)
        # That a wait ends does not end what waits.
        parts = (
            part
            for level in walk(held, lambda part: not is_shared(part), MAX_PARTS)
            for part in level.values()
        )
        if not any(type(part) in _SUSPENDED or type(part) in futures for part in parts):
            yield Timer(call.when() - clock.monotonic(), (call, *held) if alone else ())


def _future_types() -> tuple[Any, ...]:
    modules = (sys.modules.get("asyncio.futures"), sys.modules.get("asyncio.tasks"))
    return tuple(
        kind
        for module in modules
        for name in _FUTURES
        if (kind := getattr(module, name, None)) is not None
    )


def _parts_of_call(function: Any, args: Any, kwargs: Any) -> tuple[object, ...]:
    """Return a function, its arguments and the variables of its closure, each as one entry."""
    parts: list[object] = [function]
    parts += args if type(args) in (list, tuple) else ()
    parts += kwargs.values() if type(kwargs) is dict else ()
    while type(function) in (partial, MethodType):
        parts += (
            (*function.args, *function.keywords.values())
            if type(function) is partial
            else (function.__self__,)
        )
        function = _called(function)
    if type(function) is FunctionType:
        parts += gc.get_referents(*function.__closure__ or ())
    return tuple(parts)


def _called(function: Any) -> Any:
    return function.func if type(function) is partial else function.__func__


def _starts_timer(function: Any) -> bool:
    while type(function) in (partial, MethodType):
        function = _called(function)
    return type(function) is FunctionType and not _STARTS_TIMER.isdisjoint(
        function.__code__.co_names
    )


def _count_references(listed: list[Any]) -> list[int]:
    return [sys.getrefcount(one) for one in listed]


def _references_to(thread: threading.Thread) -> int:
    return sys.getrefcount(thread)


@cache
def _of_thread() -> int:
    """Count the references to a timer while its thread waits, with a variable of the caller."""
    timer = threading.Timer(_MAX_START_SECONDS, int)
    timer.start()
    until, waiting = clock.monotonic() + _MAX_START_SECONDS, instance_dict(timer.finished) or {}
    while not getattr(waiting.get("_cond"), "_waiters", True) and clock.monotonic() < until:
        clock.sleep(_START_CHECK_SECONDS)
    count = _references_to(timer)
    timer.cancel()
    timer.join()
    return count
