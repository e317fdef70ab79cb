"""Adapt the timers of pytest-timeout and of pytest's own `faulthandler_timeout` to a test that is repeated.

pytest-timeout sets the timer once per test. With its method "signal", this module restarts the timer for each iteration
and stops it in between, so that no timeout interrupts a reading. A timer that is a thread would disturb the measurement
if it were restarted each time. That of the method "thread" spans all iterations, and is restarted only for the last run;
that of `faulthandler_timeout` is restarted from time to time.
"""

from __future__ import annotations

import faulthandler
from dataclasses import replace

# The functions themselves: a test may replace those of the module.
from threading import current_thread, main_thread
from typing import Any, Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.probes import clock

# The settings with which pytest-timeout last set the timer of an item.
_TIMER_SETTINGS: Final = pytest.StashKey[Any]()
# An iteration has at least the rest of `faulthandler_timeout`.
_MAX_SPENT_SHARE: Final = 0.1


def is_loaded(item: pytest.Item) -> bool:
    """Return whether pytest-timeout is loaded; its name as a plugin depends on the way in which it was loaded."""
    return hasattr(item.config.hook, "pytest_timeout_cancel_timer")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Note the settings with which pytest-timeout sets a test's timer; this module is registered as a plugin."""
    item.stash[_TIMER_SETTINGS] = settings


class Timer:
    """The timers of one test. A timeout that is not set, or that is for the test body only, is left alone."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        settings = item.stash.get(_TIMER_SETTINGS, None)
        # With `func_only`, pytest-timeout itself sets the timer for each run of the body.
        self._settings = None if getattr(settings, "func_only", True) else settings
        in_main_thread = current_thread() is main_thread()
        self._restarts = getattr(self._settings, "method", "") == "signal" and in_main_thread
        config = item.config
        dumps = config.pluginmanager.hasplugin("faulthandler") and fault_handler_stderr_fd_key in config.stash
        # Of the dump of the stacks; 0 if there is none.
        self._dump_seconds = float(config.getini("faulthandler_timeout") or 0) if dumps else 0.0
        self._dump_began = clock.monotonic()

    def stop(self) -> None:
        """Stop the timer after an iteration, if it can be restarted."""
        if self._restarts:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)

    def start(self) -> None:
        self._restart_dump(_MAX_SPENT_SHARE)
        if self._restarts:
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)

    def start_last(self) -> None:
        """Restart the timers before the last run, with either method of pytest-timeout."""
        self._restart_dump(0.0)
        if self._settings is not None:
            self._item.ihook.pytest_timeout_cancel_timer(item=self._item)
            self._item.ihook.pytest_timeout_set_timer(item=self._item, settings=self._settings)

    def _restart_dump(self, max_spent_share: float) -> None:
        """Restart the timer of `faulthandler_timeout` if more than this share of its time is over."""
        now = clock.monotonic()
        if self._dump_seconds > 0 and now - self._dump_began > max_spent_share * self._dump_seconds:
            self._dump_began = now
            config = self._item.config
            stderr, exits = config.stash[fault_handler_stderr_fd_key], config.getini("faulthandler_exit_on_timeout")
            faulthandler.dump_traceback_later(self._dump_seconds, file=stderr, exit=exits)


def within_timeout(item: pytest.Item, plan: Plan) -> Plan:
    """Limit the time of a plan to a share of the test's timeout; the rest of the timeout is for the last run."""
    if not is_loaded(item):
        return plan
    mark = item.get_closest_marker("timeout")
    given = (*mark.args, mark.kwargs.get("timeout")) if mark is not None else ()
    settings = (*given, item.config.getoption("timeout", None), item.config.getini("timeout"))
    try:
        limit = float(next((one for one in settings if one is not None), None) or 0)
    except ValueError:
        limit = 0.0
    return replace(plan, effort=plan.effort.within_timeout(limit)) if limit > 0 else plan
