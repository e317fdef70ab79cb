"""Adapt pytest-timeout's timer to a test that is repeated.

pytest-timeout sets the timer once per test. With its method "signal", this module restarts the timer for each iteration
and stops it while the plugin works between two iterations. So the plugin never causes a timeout, and no timeout
interrupts a reading. With the method "thread", the timer ends the whole process. Restarting such a timer would create
threads, which disturbs the measurement. So it spans all iterations, and is restarted only for the last run.
"""

from __future__ import annotations

from dataclasses import replace

# The functions themselves: a test may replace those of the module.
from threading import current_thread, main_thread
from typing import Any, Final

import pytest

from pytest_leakcheck.config.plan import Plan

# The share of the timeout that the iterations may use; the rest is for the last run.
_MAX_TIMEOUT_SHARE: Final = 0.7

# The settings with which pytest-timeout last set the timer of an item.
_TIMER_SETTINGS: Final = pytest.StashKey[Any]()


class TimerWatch:
    """The hook that records the settings with which pytest-timeout sets a test's timer."""

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        item.stash[_TIMER_SETTINGS] = settings


class Timer:
    """The timer of one test.

    It does nothing without pytest-timeout, or if the timeout is for the test body only.
    """

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        settings = item.stash.get(_TIMER_SETTINGS, None)
        # With `func_only`, pytest-timeout itself sets the timer for each run of the body.
        self._settings = None if getattr(settings, "func_only", True) else settings
        in_main_thread = current_thread() is main_thread()
        self._restarts = getattr(self._settings, "method", "") == "signal" and in_main_thread

    def stop(self) -> None:
        """Stop the timer after an iteration, if it can be restarted."""
        if self._restarts:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)

    def start(self) -> None:
        """Restart the timer before an iteration."""
        if self._restarts:
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)

    def start_last(self) -> None:
        """Restart the timer before the last run, with either method of pytest-timeout."""
        if self._settings is not None:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)


def within_timeout(item: pytest.Item, plan: Plan) -> Plan:
    """Limit the time of a plan to a share of the test's timeout.

    The rest of the timeout is for the last run. The limit holds for both methods of pytest-timeout, although only a
    timer of the method "thread" spans all iterations.
    """
    if not item.config.pluginmanager.hasplugin("timeout"):
        return plan
    mark = item.get_closest_marker("timeout")
    given = (*mark.args, mark.kwargs.get("timeout")) if mark is not None else ()
    seconds = next((one for one in (*given, item.config.getoption("timeout", None)) if one is not None), None)
    seconds = seconds if seconds is not None else item.config.getini("timeout")
    try:
        limit = float(seconds or 0)
    except ValueError:
        return plan
    if limit <= 0:
        return plan
    effort = replace(plan.effort, max_time=min(plan.effort.max_time, _MAX_TIMEOUT_SHARE * limit))
    return replace(plan, effort=effort)
