"""pytest-timeout's timer, which goes off once in a test: each run of a repeated test gets the whole of its time.

It stands still while this plugin works between two runs: a timeout is never of our making, and is never raised in the middle
of a reading. By the method "thread" it ends the process, whatever that is doing, and making threads would disturb what is
measured; so that one spans all iterations, and is only set again for the last run.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, Final

import pytest

from pytest_leakcheck.config.plan import Plan

# The rest is for the last run, where the timer spans all.
_OF_TIMEOUT: Final = 0.7

_SET: Final = pytest.StashKey[Any]()


class TimerWatch:
    """The hook that sees what a test's timer is set to."""

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        item.stash[_SET] = settings


class Timer:
    """The timer of one test; without pytest-timeout, or where only the body has a time, it does nothing."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        settings = item.stash.get(_SET, None)
        # Where it is for the body alone, it is set with each body.
        self._settings = None if getattr(settings, "func_only", True) else settings
        in_main_thread = threading.current_thread() is threading.main_thread()
        self._stops = getattr(self._settings, "method", "") == "signal" and in_main_thread

    def stop(self) -> None:
        """An iteration has ended."""
        if self._stops:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)

    def start(self) -> None:
        """An iteration begins."""
        if self._stops:
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)

    def start_last(self) -> None:
        """The last run begins."""
        if self._settings is not None:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)


def within_timeout(item: pytest.Item, plan: Plan) -> Plan:
    """Leave room under pytest-timeout for the last run, where its timer spans all iterations."""
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
    effort = replace(plan.effort, max_time=min(plan.effort.max_time, _OF_TIMEOUT * limit))
    return replace(plan, effort=effort)
