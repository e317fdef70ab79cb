from __future__ import annotations

import contextlib
from typing import Any

import pytest

from pytest_leakcheck.plugin.watchdog import Blocked, Watchdog
from repeats import Clock


class Timer:
    """A timer that notes what it is set to."""

    def __init__(self) -> None:
        self.seconds = list[float]()

    def set(self, seconds: float, _again: float = 0.0) -> None:
        self.seconds.append(seconds)


def test_a_run_may_take_as_long_as_a_traced_one_before_it(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, timer, other = Clock(monkeypatch), Timer(), Timer()
    watchdog: Any = Watchdog(pytestconfig)
    watchdog._timers = timer, other
    for seconds in (0.4, 1.5, 9.0):
        with watchdog.limit(0.4):
            clock.take(seconds)
    # One that was interrupted allows no later one as much.
    with contextlib.suppress(Blocked), watchdog.limit(0.4):
        clock.take(200)
        raise Blocked("at a.py:1")
    with watchdog.limit(0.4):
        clock.take(0.4)
    assert [one for one in timer.seconds if one] == [8, 8, 30, 180, 180]
    assert other.seconds[::2] == [68, 68, 90, 240, 240]
