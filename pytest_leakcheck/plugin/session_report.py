"""Collect the findings of a session, attached to reports (also of xdist workers); show them."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from pytest_leakcheck.attribution.handles import live_children
from pytest_leakcheck.model import LeakcheckError, describe_error
from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_count, format_rates
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.baseline_session import BaselineSession
from pytest_leakcheck.plugin.collection import NO_TIME, Sampling, find_debugger
from pytest_leakcheck.plugin.fixture import UNUSED
from pytest_leakcheck.plugin.item_reports import findings_of, to_lines
from pytest_leakcheck.plugin.other_plugins import XdistController, has_xdist, is_worker
from pytest_leakcheck.plugin.pytest_versions import is_of_subtest
from pytest_leakcheck.plugin.report_files import ReportFiles, describe_session
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions, undisturbed_writing
from pytest_leakcheck.probes import clock
from pytest_leakcheck.report.finding_text import WIDTH, Line, Style
from pytest_leakcheck.report.glyphs import printable, shorten, shown_in, truncate
from pytest_leakcheck.report.json_file import Session
from pytest_leakcheck.report.summary import Tally, fold, summary_lines

# How the reporter calls the list of the tests that have failed.
_FAILED: Final = "failed"
_MARKUP: Final[Mapping[Style, dict[str, bool]]] = {
    "verdict": {"red": True, "bold": True},
    "label": {"light": True},
    "command": {"bold": True},
    "source": {},
    "plain": {},
}
# Under these keys, an xdist worker sends what it logs no report of.
_UNLOGGED: Final = "leakcheck_findings"
_UNJUDGED: Final = "leakcheck_unjudged"
_LEFT_OUT: Final = "leakcheck_left_out"
# Columns that the name of the first test has at least.
_MIN_NAME: Final = 20


class SessionReport:
    """The hooks that collect and print findings; registered with ``--leakcheck``."""

    def __init__(
        self, config: pytest.Config, baseline: BaselineSession, sampling: Sampling | None
    ) -> None:
        """Register the hooks of an xdist controller."""
        settings = self._settings = config.stash[keys.SETTINGS]
        self._config, self._baseline, self._sampling = config, baseline, sampling
        # As text, because of the time that each collection of garbage takes
        # (`item_reports.attach`).
        self._shown: list[str] = []
        # What remained of their tests, among it child processes by command line.
        self._remaining: set[str] = set()
        self._tally = Tally()
        # The first test with a block in the output, by the fingerprint of the cause and the
        # outcome.
        self._first_tests: dict[tuple[str, str], str] = {}
        self._unmeasured: dict[str, str] = {}
        self._began = clock.monotonic()
        # Errors of this class, which the summary states.
        self._lost: list[str] = []
        # What an xdist worker sends without reports.
        self._unlogged: list[str] = []
        self._unjudged: dict[str, str] = {}
        if is_worker(config):
            sent: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
            sent |= {
                _UNLOGGED: self._unlogged,
                _UNJUDGED: self._unjudged,
                _LEFT_OUT: baseline.left_out,
            }
        wanted = (settings.json or settings.html) and not is_worker(config)
        self._files = ReportFiles(config, settings) if wanted else None
        # What takes each finding.
        takers = (self._tally, baseline, sampling)
        self.listeners: list[Callable[[Finding], None]] = [
            taker.add for taker in takers if taker is not None
        ]
        if has_xdist(config) and not is_worker(config):
            config.pluginmanager.register(XdistController(config), "leakcheck-xdist")

    def pytest_report_header(self, config: pytest.Config) -> str:
        if debugger := find_debugger(config):
            return f"leakcheck: no verdicts: tests {debugger}"
        effort = (
            format_count(self._settings.iterations, "iteration")
            if self._settings.iterations
            else "adaptive"
        )
        return f"leakcheck: {effort}, at most {self._settings.max_time:g} s per test"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if self._files is not None:
            self._files.begin()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(
        self, report: pytest.TestReport
    ) -> Generator[None, object, object]:
        of_test = not is_of_subtest(report)
        try:
            # Most reports hold nothing of ours, and then cost no more than in a plain session.
            if of_test and (report.failed or hasattr(report, "leakcheck")):
                with OriginalFunctions():
                    self._take(report)
        except Exception as error:  # noqa: BLE001 - a test may have disturbed anything; the session goes on
            self._lost.append(f"the finding on {report.nodeid} is lost: {describe_error(error)}")
        result = yield
        # By now, the process that ran the test has noted on the report why it is not judged.
        if unmeasured := getattr(report, "leakcheck_unmeasured", ""):
            self._unmeasured[report.nodeid] = unmeasured
        if of_test:
            reason = unmeasured or getattr(report, "leakcheck_not_asked", "")
            self._tally.add_run(report.nodeid, reason)
        # By now, each plugin has written or sent what it needs of the report, which pytest keeps to
        # the end.
        for name in ("leakcheck", "leakcheck_lines"):
            report.__dict__.pop(name, None)
        return result

    def _take(self, report: pytest.TestReport) -> None:
        findings = self._add_lines(getattr(report, "leakcheck", ""), report.nodeid)
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and crash.message.startswith("LeakError: "):
            red = {one.fingerprint: one for one in findings if one.colour == "red"}
            self._show(report, next(iter(red.values())) if len(red) == 1 else None)

    def _show(self, report: pytest.TestReport, finding: Finding | None) -> None:
        """Show the block of a cause's first test; others refer to it, except under ``-v``."""
        if not self._config.pluginmanager.hasplugin("terminalreporter"):
            return
        crash: Any = report.longrepr.reprcrash  # type: ignore[union-attr]
        crash.message = shown_on(self._config.get_terminal_writer(), crash.message)
        if finding is not None and self._config.get_verbosity() <= 0:
            verdict, cause = finding.verdict, (finding.fingerprint, finding.verdict.outcome)
            first = self._first_tests.setdefault(cause, finding.test)
            if first != finding.test:
                grows = finding.scaled is None and verdict.outcome in ("leak", "unclosed")
                slopes = [verdict.slope if grows else 0.0]
                report.longrepr = SameCauseReport(
                    report.longrepr, cause, first, verdict.resource, slopes
                )
                return
        if lines := getattr(report, "leakcheck_lines", ()):
            report.longrepr = FindingReport(report.longrepr, lines)

    def add(self, finding: Finding, line: str = "") -> None:
        """Add a finding; `line` is that in which it has travelled, if it has."""
        for take in self.listeners:
            take(finding)
        shown = finding.colour != "green" or self._wanted in ("all", "sensitivity")
        if shown or self._files is not None:
            line = line or to_lines([finding], self._settings)
        if self._files is not None:
            self._files.add(finding, line)
        if shown:
            self._shown.append(line)
            self._remaining.update(one.what for held in finding.held.values() for one in held)

    def _add_lines(self, text: str, nodeid: str = "") -> list[Finding]:
        findings = findings_of(text, nodeid)
        for finding, line in zip(findings, text.splitlines(keepends=True), strict=True):
            self.add(finding, line)
        return findings

    def add_unlogged(self, finding: Finding) -> None:
        """Add a finding for which no report is logged; an xdist worker sends it at its end."""
        if is_worker(self._config):
            self._unlogged.append(to_lines([finding], self._settings))
        else:
            self.add(finding)

    def add_unjudged(self, nodeid: str, reason: str) -> None:
        """Add why the second pass does not judge a test."""
        if is_worker(self._config):
            self._unjudged[nodeid] = reason
        else:
            self._tally.add_run(nodeid, reason)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker of xdist has found or left out, and logged no report of."""
        sent: dict[str, Any] = getattr(node, "workeroutput", {})
        self._add_lines("".join(sent.get(_UNLOGGED, ())))
        for nodeid, reason in sent.get(_UNJUDGED, {}).items():
            self._tally.add_run(nodeid, reason)
        self._baseline.left_out.extend(sent.get(_LEFT_OUT, ()))

    @property
    def _wanted(self) -> str:
        """What the summary lists."""
        verbosity, wanted = self._config.get_verbosity(), self._settings.summary
        if verbosity < 0:
            return "failed"
        return "sensitivity" if wanted == "failed" and verbosity > 0 else wanted

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, Mapping[str, bool]]] | None:
        if is_of_subtest(report) or report.when != "call":
            return None
        known: str = getattr(report, "leakcheck_known", "")
        if report.passed and known:
            return "known", "K", ("KNOWN", {"yellow": True})
        if report.failed and (red := getattr(report, "leakcheck_red", "")):
            # "U" is that of "unclosed".
            return (
                "failed",
                "A" if red == "unavailable" else red[0].upper(),
                red.replace("_", " ").upper(),
            )
        return None

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        def write(lines: Iterable[tuple[str, str]]) -> None:
            for colour, line in lines:
                shown = shown_on(config.get_terminal_writer(), printable(line))
                markup = "light" if colour == "dim" else colour
                terminalreporter.write_line(shown, **({markup: True} if markup else {}))

        quiet, bare = config.get_verbosity() < 0, terminalreporter.no_summary
        write(self._opening_lines(config.get_verbosity()))
        if not self._tally.tests and not self._lost:
            return
        if not quiet and not bare:
            terminalreporter.write_sep("=", "leakcheck")
        write(
            ("", line)
            for line in fold(f"leakcheck: {self.headline()}" if bare else self.headline())
        )
        if not bare:
            write(summary_lines(findings_of("".join(self._shown)), self._tally, self._wanted))
        write(self._closing_lines())
        write(("red", f"leakcheck: {error}") for error in self._lost)
        if self._files is not None and not quiet:
            write(("", f"leakcheck: wrote {path}") for path in self._files.written)

    def headline(self) -> str:
        """Return the line that accounts for all tests; empty if none has run."""
        return self._tally.headline(clock.monotonic() - self._began)

    def _closing_lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is to be done next time, as (color, text)."""
        left_out = self._tally.not_judged_for(NO_TIME)
        if self._sampling is not None and left_out:
            yield from (
                ("yellow", part) for part in fold(f"leakcheck: {self._sampling.describe(left_out)}")
            )
        yield from self._baseline.lines()
        children = live_children() if self._remaining else {}
        if running := [str(pid) for pid, what in children.items() if what in self._remaining]:
            line = f"{len(running)} child processes of leaking tests still run: {' '.join(running)}"
            yield "yellow", truncate(f"leakcheck: {line}", WIDTH)

    def _opening_lines(self, verbosity: int) -> Iterator[tuple[str, str]]:
        """Yield why tests lack a verdict that they asked for, and what is wrong in the settings."""
        reasons = Counter(
            why for why in self._unmeasured.values() if why != UNUSED or verbosity > 0
        )
        for reason, count in reasons.items():
            yield "yellow", f"leakcheck: {count} not measured: {reason}"
        if line := self._tally.nothing_judged:
            yield "red" if self._fails_on_nothing else "yellow", line

    def _describe(self) -> Session:
        """Describe the session for its files, which are read without the terminal's output."""
        lines = [*self._opening_lines(0), *self._closing_lines()]
        notes = (
            *(line for _colour, line in lines),
            *(f"leakcheck: {error}" for error in self._lost),
        )
        seconds = clock.monotonic() - self._began
        return describe_session(self._config, self._settings, self.headline(), notes, seconds)

    @property
    def _fails_on_nothing(self) -> bool:
        return "nothing" in self._settings.fail_on and not self._tally.worst

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (
            self._fails_on_nothing
            and session.exitstatus == pytest.ExitCode.OK
            and not is_worker(self._config)
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        try:
            with undisturbed_writing():
                self._baseline.finish(session)
        except (LeakcheckError, OSError) as error:
            self._lost.append(f"could not write the file of known leaks: {error}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        if self._files is not None:
            self._lost += self._files.finish(self._describe)
            session.exitstatus = (
                pytest.ExitCode.INTERNAL_ERROR if self._lost else session.exitstatus
            )


def shown_on(tw: Any, text: str) -> str:
    """Replace what the file of a terminal writer cannot show."""
    return shown_in(text, getattr(tw._file, "encoding", None))


class FindingReport(TerminalRepr):
    """The lines of a finding, for the terminal; elsewhere, it acts as the report it replaces."""

    def __init__(self, replaced: Any, lines: Sequence[Line]) -> None:
        self._replaced, self._lines = replaced, lines

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replaced, name)

    def __str__(self) -> str:
        return str(self._replaced)

    def toterminal(self, tw: Any) -> None:
        for line in self._lines:
            for text, style in line:
                shown = shown_on(tw, text)
                tw.write(tw._highlight(shown) if style == "source" else shown, **_MARKUP[style])
            tw.line()


class SameCauseReport(FindingReport):
    """The report of tests with one cause: on the terminal, a line names the first test with it.

    `cause` is the fingerprint and the outcome. A slope is 0 if the verdict is on no growth.
    """

    def __init__(
        self, replaced: Any, cause: tuple[str, str], first: str, resource: str, slopes: list[float]
    ) -> None:
        self.cause, self.first, self.resource, self.slopes = cause, first, resource, slopes
        begin = f"{cause[1].replace('_', ' ').upper()} same as {short_id(cause[0])} ("
        rates = format_rates(slopes, find_resource(resource).unit)
        end = f"): {resource} {rates}" if slopes[0] else ")"
        room = max(_MIN_NAME, WIDTH - len(begin) - len(end))
        lines = [f"{begin}{shorten(first, room)}{end}"]
        if len(slopes) > 1:
            lines.append(f"  -v shows all {len(slopes)}")
        super().__init__(replaced, tuple(((printable(line), "verdict"),) for line in lines))


class FoldedFailures:
    """The hook that folds failures with one cause while pytest prints its sections.

    Otherwise, pytest and other plugins see all failures. The first test of a cause keeps its block
    and its line. If several others follow, each section has one entry for them. Under ``-v``,
    nothing is folded, because each test has its block.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.whole: list[Any] = []
        config.pluginmanager.register(_WholeInside(self), "leakcheck-whole-failures")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        """Fold before the reporter prints FAILURES, and unfold after its short summary."""
        self.whole = terminalreporter.stats.get(_FAILED, [])
        with _failures(terminalreporter, fold_failures(self.whole)):
            return (yield)


class _WholeInside:
    """The hook that shows all failures while other plugins print, between pytest's sections."""

    def __init__(self, folded: FoldedFailures) -> None:
        self._folded = folded

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        with _failures(terminalreporter, self._folded.whole):
            return (yield)


@contextlib.contextmanager
def _failures(reporter: pytest.TerminalReporter, shown: list[Any]) -> Iterator[None]:
    """Let the reporter show these failures in place of those that it has, if any."""
    before = reporter.stats.get(_FAILED)
    if before:
        reporter.stats[_FAILED] = shown
    try:
        yield
    finally:
        if before:
            reporter.stats[_FAILED] = before


def fold_failures(failed: Iterable[Any]) -> list[Any]:
    """Return reports of failed tests, with one in place of several that refer to the same block."""
    groups: dict[Any, list[Any]] = {}
    for report in failed:
        same = report.longrepr if isinstance(report.longrepr, SameCauseReport) else None
        groups.setdefault(same.cause if same is not None else id(report), []).append(report)
    return [group[0] if len(group) == 1 else _fold(group) for group in groups.values()]


def _fold(group: list[Any]) -> Any:
    """Return a report for several tests, which is only printed."""
    first, more = group[0], f"and {len(group) - 1} more"
    folded = copy.copy(first)
    file, line, name = first.location
    folded.location, folded.sections = (file, line, f"{name} {more}"), []
    same, slopes = first.longrepr, [slope for report in group for slope in report.longrepr.slopes]
    folded.longrepr = SameCauseReport(same, same.cause, same.first, same.resource, slopes)
    folded.longrepr.reprcrash = ReprFileLocation(
        file, line or 0, printable(f"{more}: same cause as {same.first}")
    )
    return folded
