"""On a terminal, show how far a slow test and the session are. Elsewhere, add to ``-v`` how often each test was repeated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Generator
from typing import Any, Final, TypeAlias

import pytest

from pytest_leakcheck.config.time_left import Forecast, format_duration
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.units import format_count
from pytest_leakcheck.model.verdict import RED
from pytest_leakcheck.plugin.chosen_tests import Sampling, find_debugger, is_asked
from pytest_leakcheck.probes import clock
from pytest_leakcheck.report.progress_text import ItemProgress, SessionProgress, format_growth, progress_line
from pytest_leakcheck.report.transient_line import TransientLine
from pytest_leakcheck.runner import progress
from pytest_leakcheck.runner.progress import Progress, follow

# Seconds. A test that took longer in the last session has a line from its beginning; a shorter session, no estimate.
_SLOW: Final = 1.0
_Status: TypeAlias = tuple[str, str, "str | tuple[str, Any]"]


class SessionLine:
    """The line about the session, if there is one; and under ``-v``, how often each test was repeated."""

    def __init__(self, config: pytest.Config, sampling: Sampling) -> None:
        self._config, self._sampling = config, sampling
        self._line: TransientLine | None = None
        self._forecast = Forecast((), {})
        self._red: set[str] = set()
        # Of the findings of the report that is being logged.
        self._iterations, self._seconds = 0, 0.0

    def add(self, finding: Finding) -> None:
        if finding.colour == "red":
            self._red.add(finding.test)
        self._iterations += max((one.iterations for one in finding.recording.series), default=0)
        self._seconds += finding.recording.seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None, object, object]:
        self._erase()
        try:
            return (yield)
        finally:
            self._iterations, self._seconds = 0, 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, _Status, _Status]:
        category, letter, word = yield
        if not self._iterations or self._config.get_verbosity() <= 0 or not word:
            return category, letter, word
        counted = f" ({format_count(self._iterations, 'iteration')}, {self._seconds:.1f} s)"
        return category, letter, word + counted if isinstance(word, str) else (word[0] + counted, word[1])

    def _erase(self) -> None:
        if self._line is not None:
            self._line.erase()


class ProgressLine(SessionLine):
    """The hooks that show the line; registered in the process that prints.

    The line is drawn between iterations, by no other thread. What a drawing allocates is subtracted from the readings
    (`runner.progress`).
    """

    def __init__(self, config: pytest.Config, sampling: Sampling) -> None:
        super().__init__(config, sampling)
        # The test that is running, when it began, and when its line is to be drawn again.
        self._item: pytest.Item | None = None
        self._began = self._due = 0.0

    def pytest_report_collectionfinish(self, items: Collection[pytest.Item]) -> list[str]:
        """State how many tests are measured, and how long that takes, if it is known."""
        if self._config.getoption("collectonly") or find_debugger(self._config):
            return []
        self._forecast = self._sampling.forecast([item.nodeid for item in items if is_asked(item)])
        self._line = open_line(self._config)
        if self._line is not None:
            self._config.add_cleanup(follow(self._follow))
        return list(filter(None, [estimate(self._config, self._sampling, self._forecast, len(items))]))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not is_asked(item):
            return (yield)
        self._item, self._began = item, clock.monotonic()
        self._due = self._began + progress.AFTER
        try:
            return (yield)
        finally:
            self._item = None
            self._forecast.end(item.nodeid, clock.monotonic() - self._began)
            self._erase()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, object, object]:
        """Show the line at once if the test was slow in the last session: its first iteration may take long."""
        self._erase()
        result = yield
        if self._forecast.expected(nodeid) >= _SLOW:
            self._draw("", "")
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_enter_pdb(self) -> None:
        self._erase()

    def look(self, step: str) -> None:
        """Draw the line, if it is due, for a test in another process, which has reached this step."""
        now = clock.monotonic()
        if now >= self._due:
            self._due = now + progress.EVERY
            self._draw(step, f"separate process, {format_duration(now - self._began)}")

    def _follow(self, told: Progress) -> None:
        if told.state == "naming":
            red = [name for name, outcome in told.verdicts.items() if outcome in RED]
            self._draw(str(told.iteration), f"{', '.join(red)}: finding the cause")
            return
        details = "warm-up" if told.state == "warming up" else format_growth(told.growth)
        self._draw(f"{told.iteration}/{told.most}", details)

    def _draw(self, step: str, details: str) -> None:
        if self._line is None or self._item is None:
            return
        left = self._forecast.seconds_left(self._item.nodeid, clock.monotonic() - self._began)
        session = SessionProgress(self._forecast.done, self._forecast.tests, len(self._red), left)
        self._line.draw(progress_line(ItemProgress(self._item.name, step, details), session, self._line.width))


def estimate(config: pytest.Config, sampling: Sampling, forecast: Forecast, tests: int, workers: int = 1) -> str:
    """Return how many tests are measured, and how long it takes; empty if unknown, for a short session or ``-q``."""
    expected = forecast.seconds_left()
    expected = None if expected is None else min(expected / workers, sampling.limit)
    if expected is None or expected < _SLOW or config.get_verbosity() < 0:
        return ""
    within = f" in {format_count(workers, 'worker')}" if workers > 1 else ""
    measured = f"{forecast.tests:,} of {format_count(tests, 'test')}"
    return f"leakcheck: {measured}, about {format_duration(expected)}{within} (from the last run)"


def open_line(config: pytest.Config) -> TransientLine | None:
    """Return the line; None if the output is no terminal, or something else may print while a test runs."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    # Plugins that replace the reporter draw lines of their own.
    if type(reporter) is not pytest.TerminalReporter or not _wants_progress(config):
        return None
    capture = config.pluginmanager.getplugin("capturemanager")
    terminal = getattr(getattr(getattr(capture, "_global_capturing", None), "out", None), "targetfd_save", None)
    if not isinstance(terminal, int) or os.environ.get("TERM", "dumb") == "dumb":
        return None
    with contextlib.suppress(OSError):
        file = config.get_terminal_writer()._file
        return TransientLine(terminal, file.encoding) if file.isatty() and os.isatty(terminal) else None
    return None


def _wants_progress(config: pytest.Config) -> bool:
    """Return whether to show a line: not if users want less output or logs as they arise, and not in a job of CI."""
    quiet = config.get_verbosity() < -1 or config.getini("console_output_style") == "classic"
    blocked = config.pluginmanager.is_blocked("terminalprogress")
    # Without the capturing of descriptors, or with --setup-show, a test prints to the terminal.
    prints = config.getoption("capture", "") != "fd" or config.getoption("setupshow", False)
    logs = config.getoption("log_cli_level", None) is not None or bool(config.getini("log_cli"))
    # pytest recognizes a job whose output becomes a log by these variables.
    return not (quiet or blocked or prints or logs or os.environ.get("CI") or os.environ.get("BUILD_NUMBER"))
