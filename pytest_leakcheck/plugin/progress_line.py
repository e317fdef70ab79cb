"""Show on a terminal how far a slow test and the session are.

Elsewhere, estimate now and then how long the rest takes. Under ``-v``, add how often each test was
repeated.

The line is drawn between iterations, by no other thread. What a drawing allocates is subtracted
from the readings (`runner.progress`). It stands below what is printed, and is erased without a
trace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Generator, Mapping

# The functions themselves: a test may replace those of the module.
from os import get_terminal_size, write
from typing import Any, Final, NamedTuple, TypeAlias

import pytest

from pytest_leakcheck.config.sampling import Forecast, format_duration
from pytest_leakcheck.model.finding import RED, Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_count, format_rate
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.collection import (
    NOT_REACHED,
    Sampling,
    find_debugger,
    is_asked,
    is_judged_now,
    waits,
)
from pytest_leakcheck.plugin.other_plugins import is_distributed
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import OwnFile
from pytest_leakcheck.report.glyphs import printable, shorten, shown_in
from pytest_leakcheck.runner import progress

# Seconds. A test that took less in the last session has no line at its beginning; a shorter
# session, no estimate.
_SLOW: Final = 1.0
# Without a line, the first estimate comes after this many seconds of judging, and each further one
# after twice as many.
ESTIMATE_AFTER = 30.0
_Status: TypeAlias = tuple[str, str, "str | tuple[str, Any]"]
_MAX_WIDTH: Final = 80
# Make sure that there is a line below: move down, which scrolls at the bottom, and up again; the
# column stays. Save the position, and turn off the wrapping of long lines.
_BEGIN: Final = b"\x1bD\x1b[A\x1b7\x1b[?7l\r\n\x1b[2K"
# Wrap long lines again, and return to the saved position.
_END: Final = b"\x1b[?7h\x1b8"
# Erase all that follows the cursor. Nothing else is printed there.
_ERASE: Final = b"\x1b[J"
# The maximum number of growing resources that the line lists.
_MAX_GROWING: Final = 2
# The name of a test is not shortened below this many columns; other parts are left out instead.
_MIN_NAME: Final = 12


class ProgressLine:
    """The hooks that show the line, and iterations under ``-v``, in the process that prints."""

    def __init__(self, config: pytest.Config, sampling: Sampling) -> None:
        self._config, self._sampling = config, sampling
        self._line: TransientLine | None = None
        self._forecast = Forecast((), {})
        self._estimate_after = ESTIMATE_AFTER
        # What workers have run and will judge later; with `--dist=each`, several run the same
        # tests.
        self._has_workers = is_distributed(config) and config.getoption("dist") != "each"
        self._passed: set[str] = set()
        self._red: set[str] = set()
        # Of the findings of the report that is being logged.
        self._iterations, self._seconds = 0, 0.0
        # The test that is running, when it began, and when its line is to be drawn again.
        self._item: pytest.Item | None = None
        self._began = self._due = 0.0

    def add(self, finding: Finding) -> None:
        if finding.colour == "red":
            self._red.add(finding.test)
        self._iterations += max(one.iterations for one in finding.verdicts)
        self._seconds += finding.recording.seconds

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(
        self, report: pytest.TestReport
    ) -> Generator[None, object, object]:
        self._erase()
        if self._has_workers:
            is_waiting = getattr(report, "leakcheck_not_asked", "") == NOT_REACHED
            (self._passed.add if is_waiting else self._passed.discard)(report.nodeid)
        try:
            return (yield)
        finally:
            self._iterations, self._seconds = 0, 0.0

    @pytest.hookimpl
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a worker has run a test to judge later, or, the second time, has judged it."""
        if not self._has_workers:
            return
        now = clock.monotonic()
        if nodeid in self._passed:
            self._passed.discard(nodeid)
            self._forecast.add(nodeid)
        else:
            self._end(nodeid, now - self._began)
        self._began = now

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, _Status, _Status]:
        category, letter, word = yield
        if not self._iterations or self._config.get_verbosity() <= 0 or not word:
            return category, letter, word
        counted = f" ({format_count(self._iterations, 'iteration')}, {self._seconds:.1f} s)"
        return (
            category,
            letter,
            word + counted if isinstance(word, str) else (word[0] + counted, word[1]),
        )

    def _erase(self) -> None:
        if self._line is not None:
            self._line.erase()

    def _estimate(self, tests: int) -> str:
        """Return the count and time of measured tests; empty if unknown, short or under ``-q``."""
        expected = self._forecast.seconds_left()
        expected = None if expected is None else min(expected, self._sampling.limit)
        if expected is None or expected < _SLOW or self._config.get_verbosity() < 0:
            return ""
        measured = f"{self._forecast.tests:,} of {format_count(tests, 'test')}"
        return f"leakcheck: {measured}, about {format_duration(expected)} (from the last run)"

    def _open_line(self) -> None:
        """Open a line if the output is a terminal, and nothing else may print during a test."""
        manager = self._config.pluginmanager
        capture = getattr(manager.getplugin("capturemanager"), "_global_capturing", None)
        terminal = getattr(getattr(capture, "out", None), "targetfd_save", None)
        # Plugins that replace the reporter draw lines of their own.
        own = type(manager.getplugin("terminalreporter")) is pytest.TerminalReporter
        if (
            not own
            or not self._is_wanted()
            or not isinstance(terminal, int)
            or os.environ.get("TERM", "dumb") == "dumb"
        ):
            return
        with contextlib.suppress(OSError):
            file = self._config.get_terminal_writer()._file
            self._line = (
                TransientLine(terminal, file.encoding)
                if file.isatty() and os.isatty(terminal)
                else None
            )

    def _is_wanted(self) -> bool:
        """Return whether to show a line: not with less output or live logs, nor in a job of CI."""
        config = self._config
        quiet = config.get_verbosity() < -1 or config.getini("console_output_style") == "classic"
        blocked = config.pluginmanager.is_blocked("terminalprogress")
        # Without the capturing of descriptors, or with --setup-show, a test prints to the terminal.
        prints = config.getoption("capture", "") != "fd" or config.getoption("setupshow", False)
        # With ``-p no:logging``, there is no such key.
        has_logs = config.pluginmanager.hasplugin("logging")
        logs = has_logs and (
            config.getoption("log_cli_level") is not None or bool(config.getini("log_cli"))
        )
        # pytest recognizes a job whose output becomes a log by these variables.
        return not (
            quiet
            or blocked
            or prints
            or logs
            or os.environ.get("CI")
            or os.environ.get("BUILD_NUMBER")
        )

    def pytest_report_collectionfinish(self, items: Collection[pytest.Item]) -> list[str]:
        """State how many tests are measured, and how long that takes, if it is known."""
        if self._config.getoption("collectonly") or find_debugger(self._config):
            return []
        self._forecast = self._sampling.forecast([item.nodeid for item in items if is_asked(item)])
        self._open_line()
        if self._line is not None:
            self._config.add_cleanup(progress.follow(self._follow))
        elif self._config.get_verbosity() < 0:
            self._config.pluginmanager.unregister(self)
        return list(filter(None, [self._estimate(len(items))]))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not is_judged_now(item):
            result = yield
            if waits(item) and not item.stash[keys.FIRST_RUN].passed:
                self._forecast.drop(item.nodeid)
            return result
        self._item, self._began = item, clock.monotonic()
        self._due = self._began + progress.AFTER
        if keys.FIRST_RUN in item.stash:
            # In the second pass, no start of a test is logged.
            self._show(item.nodeid)
        try:
            return (yield)
        finally:
            self._item = None
            self._erase()
            self._end(item.nodeid, clock.monotonic() - self._began)

    def _end(self, nodeid: str, seconds: float) -> None:
        """Note that a test was judged; without a line, write how long the rest takes, if due."""
        forecast = self._forecast
        forecast.end(nodeid, seconds)
        if (
            self._line is not None
            or self._config.get_verbosity() < 0
            or forecast.spent < self._estimate_after
        ):
            return
        self._estimate_after = 2 * forecast.spent
        if left := forecast.seconds_left():
            left = max(0.0, min(left, self._sampling.limit - forecast.spent))
            done = f"{forecast.done:,} of {format_count(forecast.tests, 'test')} judged"
            write_between(self._config, f"leakcheck: {done}, about {format_duration(left)} left")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, object, object]:
        """Show the line at once, unless the test was fast last time: its first run may be long."""
        self._erase()
        result = yield
        self._show(nodeid)
        return result

    def _show(self, nodeid: str) -> None:
        if self._forecast.may_take(nodeid, _SLOW):
            self._draw("", "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_enter_pdb(self) -> None:
        self._erase()

    def look(self, step: str) -> None:
        """Draw the line, if due, for a test in another process, which has reached this step."""
        now = clock.monotonic()
        if now >= self._due:
            self._due = now + progress.EVERY
            self._draw(step, f"separate process, {format_duration(now - self._began)}")

    def _follow(self, told: progress.Progress) -> None:
        if told.state == "naming":
            red = [name for name, outcome in told.verdicts.items() if outcome in RED]
            self._draw(str(told.iteration), f"{', '.join(red)}: finding the cause")
            return
        details = "warm-up" if told.state == "warming up" else format_growth(told.growth)
        self._draw(f"{told.iteration}/{told.most}", details)

    def _draw(self, step: str, details: str) -> None:
        if self._line is not None and self._item is not None:
            left = self._forecast.seconds_left(self._item.nodeid, clock.monotonic() - self._began)
            session = SessionProgress(
                self._forecast.done, self._forecast.tests, len(self._red), left
            )
            self._line.draw(
                progress_line(session, self._line.width, self._item.name, step, details)
            )


def write_between(config: pytest.Config, text: str) -> None:
    """End the line in which tests are printed, and write one below it, except under ``-q``."""
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        return
    if reporter._tw.width_of_current_line:
        reporter._tw.line()
    reporter.currentfspath = None
    if config.get_verbosity() >= 0:
        reporter.write_line(text, light=True)


class TransientLine:
    """A line on a terminal. The cursor stays in place, so others can print as if it did not exist.

    They must erase it before they print. Nothing is written any more once the terminal is gone, or
    the program has closed the descriptor.
    """

    def __init__(self, terminal: int, encoding: str) -> None:
        """Take a descriptor of the terminal, never closing it; raise `OSError` if it is closed."""
        self._file: OwnFile | None = OwnFile(lambda: terminal)
        self._encoding = encoding
        self._shown = False

    @property
    def width(self) -> int:
        """The columns of the line: those of the terminal, but at most 80."""
        try:
            columns = get_terminal_size(self._file.number if self._file is not None else -1).columns
        except OSError:
            columns = 0
        return min(columns or _MAX_WIDTH, _MAX_WIDTH)

    def draw(self, text: str) -> None:
        """Show a text in place of the last one."""
        self._shown = True
        self._write(_BEGIN + shown_in(text, self._encoding).encode(self._encoding) + _END)

    def erase(self) -> None:
        """Remove the line; does nothing if none is shown."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def _write(self, sequence: bytes) -> None:
        try:
            # The program may have closed the descriptor, or put another file over it.
            if self._file is not None and self._file.check() is not None:
                write(self._file.number, sequence)
                return
        except OSError:
            pass
        self._file = None


class SessionProgress(NamedTuple):
    """How far the session is; `seconds_left` is None if unknown.

    It measures `tests`, of which `done` have ended and `red` leak.
    """

    done: int
    tests: int
    red: int
    seconds_left: float | None


def progress_line(
    session: SessionProgress, width: int, name: str, step: str = "", details: str = ""
) -> str:
    """Return the line that is shown while a test is repeated, of at most `width` columns.

    It has the name of the test, the number of the iteration, and what is known of the test so far.
    A long name is shortened first; then the details are left out, then how far the session is.
    """
    begin, name = f"leakcheck {step}".rstrip(), printable(name)
    red = f", {session.red} red" if session.red else ""
    left = (
        f", ≈ {format_duration(session.seconds_left)} left"
        if session.seconds_left is not None
        else ""
    )
    end = f"[{session.done}/{session.tests}{red}{left}]"
    line = ""
    for parts in ((details, end), ("", end), ("", "")):
        rest = "".join(f"  {part}" for part in parts if part)
        room = width - len(begin) - 2 - len(rest)
        line = f"{begin}  {shorten(name, max(1, room))}{rest}"
        if room >= min(len(name), _MIN_NAME):
            return line
    return line[:width]


def format_growth(growth: Mapping[str, float]) -> str:
    """Return the resources that grew beyond their tolerance, with rates; exact counters first."""
    grown = {name: rate for name, rate in growth.items() if rate > find_resource(name).tolerance}
    in_order = sorted(grown, key=lambda name: (not find_resource(name).scarce, -grown[name]))
    rates = [
        f"{name} {format_rate(grown[name], find_resource(name).unit)}"
        for name in in_order[:_MAX_GROWING]
    ]
    more = [f"{len(in_order) - _MAX_GROWING} more"] if len(in_order) > _MAX_GROWING else []
    return " · ".join(rates + more)
