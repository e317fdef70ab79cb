"""Judge tests without a mark after all have run; until then, the session is that of plain pytest.

The second pass takes the tests that have passed, in their order. pytest sets up their fixtures
again. What happens here changes no outcome: a leak is logged as one more report of its test, and
anything else stands only in the summary.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager

# The function itself: a test may replace that of the module.
from threading import get_ident
from typing import NoReturn

import pytest

from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.units import format_count
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.collection import ELSEWHERE, waits
from pytest_leakcheck.plugin.other_plugins import AllureResults, is_worker, sending_reports_of
from pytest_leakcheck.plugin.pending_errors import PendingErrors
from pytest_leakcheck.plugin.progress_line import write_between
from pytest_leakcheck.plugin.session_report import SessionReport


class SecondPass:
    """The hooks of the second pass; not registered in a process that was started for one test."""

    def __init__(self, report: SessionReport) -> None:
        self._report = report

    # The outermost wrapper: by then, coverage is measured, and pytest no longer shows logs as they
    # arise.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        # An alarm that is set before the first test is that of the session.
        cancels = hasattr(signal, "alarm") and not signal.getitimer(signal.ITIMER_REAL)[0]
        result = yield
        if items := list(self._items_to_judge(session)):
            if not is_worker(session.config):
                write_between(
                    session.config, f"leakcheck: judging {format_count(len(items), 'test')}"
                )
            if cancels:
                # One that a test has left: in a plain session, no test would be running any more.
                signal.alarm(0)
            # The session has shown what there is to show.
            session.config.option.setupshow = False
            with PendingErrors(session.config), _no_exit(), AllureResults(session.config).paused():
                self._judge(session, items)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> None:
        """Note that an item runs in this process."""
        if waits(item):
            item.stash[keys.FIRST_RUN].reported = True

    def _items_to_judge(self, session: pytest.Session) -> Iterator[pytest.Item]:
        """Yield the waiting items that have passed in this process."""
        for item in session.items:
            first = item.stash.get(keys.FIRST_RUN, None)
            if (
                first is None
                or not first.passed
                or item.stash[keys.NOT_ASKED]
                or item.stash.get(keys.UNMEASURED, "")
            ):
                continue
            if first.reported:
                yield item
            elif first.seconds:
                # A plugin such as pytest-forked ran it in another process.
                self._report.add_unjudged(item.nodeid, ELSEWHERE)

    def _judge(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        numbers = {item: number for number, item in enumerate(session.items)}
        for item, nextitem in zip(items, [*items[1:], None], strict=True):
            item.stash[keys.FIRST_RUN].judging = True
            try:
                with sending_reports_of(numbers[item], item):
                    item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                reason = item.stash[keys.NOT_ASKED] or item.stash[keys.UNMEASURED]
            except Exception as error:  # noqa: BLE001 - a test may have replaced what judging it takes
                reason = describe_error(error)
            if reason:
                self._report.add_unjudged(item.nodeid, reason)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)


class ProcessExit(BaseException):
    """A repeated test has called ``os._exit()``."""


@contextmanager
def _no_exit() -> Iterator[None]:
    """Turn ``os._exit()`` in this thread into an exception; others and forked processes exit."""
    original, process, thread = os._exit, os.getpid(), get_ident()

    def leave(status: int) -> NoReturn:
        # A timer of pytest-timeout would end the session for a repeated run, with all its results.
        by_timeout = sys._getframe(1).f_globals.get("__name__") == "pytest_timeout"
        if os.getpid() == process and (by_timeout or get_ident() == thread):
            raise ProcessExit(f"os._exit({status})")
        original(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = original
