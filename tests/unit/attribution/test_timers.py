"""Timers that are due, what they alone hold, and those of which it is not known that they end it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from pytest_leakcheck.attribution.handles import running_threads
from pytest_leakcheck.attribution.timers import Timer, find_timers

HELD = object()
KEPT: list[object] = []


@contextmanager
def started(timer: threading.Timer) -> Iterator[list[Timer]]:
    """What is found of a timer while its thread waits, and nothing else refers to it."""
    name = timer.name
    timer.start()
    del timer
    try:
        yield find_timers(())
    finally:
        KEPT.clear()
        for one in threading.enumerate():
            if one.name == name and isinstance(one, threading.Timer):
                threading.Timer.cancel(one)
                one.join()


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (print, (HELD,), {}),
        (print, (), {"end": HELD}),
        (partial(print, HELD), (), {}),
        (partial(print, end=HELD), (), {}),
    ],
)
def test_a_timer_holds_what_it_is_made_with(function: Callable[..., object], args: Any, kwargs: Any) -> None:
    with started(threading.Timer(32, function, args, kwargs)) as found:
        assert [one.seconds for one in found] == [32]
        assert HELD in found[0].held
        assert found[0].thread in running_threads()


def test_a_closure_and_the_object_of_a_method_are_held() -> None:
    number, event = 4711, threading.Event()
    with started(threading.Timer(32, lambda: os.close(number))) as found:
        assert number in found[0].held
    with started(threading.Timer(32, event.set)) as found:
        assert event in found[0].held


def test_a_timer_that_something_else_keeps_holds_nothing_alone() -> None:
    """Once it has ended, the list still has it, and what it was made with."""
    timer = threading.Timer(32, print, (HELD,))
    KEPT.append(timer)
    with started(timer) as found:
        del timer
        assert [(one.seconds, one.held) for one in found] == [(32, ())]
        assert found[0].thread


def test_timers_that_may_not_end_it_are_left_out() -> None:
    class Repeating(threading.Timer):
        pass

    def again() -> None:
        threading.Timer(32, again).start()

    for timer in (Repeating(32, print), threading.Timer(32, again), threading.Timer(32, partial(again))):
        with started(timer) as found:
            assert found == []
    timer = threading.Timer(32, print)
    timer.start()
    assert find_timers({timer.native_id or 0}) == []
    vars(timer)["interval"] = "32"
    assert find_timers(()) == []
    vars(timer)["interval"] = 32
    timer.cancel()
    assert find_timers(()) == []
    timer.join()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    found = asyncio.new_event_loop()
    # It is older than what is listed.
    gc.freeze()
    yield found
    gc.unfreeze()
    found.close()


def test_a_scheduled_call_ends_what_it_holds(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(32, print, HELD)
    (found,) = find_timers(())
    assert 31 < found.seconds <= 32
    assert HELD in found.held
    assert found.thread == 0


def test_a_call_that_something_else_keeps_holds_nothing_alone(loop: asyncio.AbstractEventLoop) -> None:
    KEPT.append(loop.call_later(32, print, HELD))
    (found,) = find_timers(())
    KEPT.clear()
    assert found.held == ()


def test_calls_that_end_nothing_are_left_out(loop: asyncio.AbstractEventLoop) -> None:
    def again() -> None:
        loop.call_later(32, again)

    loop.call_later(32, again)
    loop.call_later(32, print, HELD).cancel()
    # What waits goes on.
    loop.create_task(asyncio.sleep(32))
    loop.run_until_complete(asyncio.sleep(0))
    # No one runs a loop that the test has made.
    other = asyncio.new_event_loop()
    other.call_later(32, print, HELD)
    assert find_timers(()) == []
    other.close()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
