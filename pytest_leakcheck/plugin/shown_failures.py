"""Show the failures of red (failing) findings: each in color, and those of several tests with one cause as one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import OfResource
from pytest_leakcheck.model.units import format_rates
from pytest_leakcheck.model.verdict import Outcome
from pytest_leakcheck.report.finding_text import WIDTH, Line, Style
from pytest_leakcheck.report.glyphs import printable, shorten, shown_in

# How the reporter calls the list of the tests that have failed.
_FAILED: Final = "failed"
_MARKUP: Final[Mapping[Style, dict[str, bool]]] = {
    "verdict": {"red": True, "bold": True},
    "label": {"light": True},
    "command": {"bold": True},
    "source": {},
    "plain": {},
}
# Columns that the name of the first test has at least.
_MIN_NAME: Final = 20


def shown_on(tw: Any, text: str) -> str:
    """Replace what the file of a terminal writer cannot show."""
    return shown_in(text, getattr(tw._file, "encoding", None))


class FindingReport(TerminalRepr):
    """The lines of a finding, for the terminal; elsewhere it acts as the report that it replaces."""

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


@dataclass(frozen=True, slots=True)
class SameCause(OfResource):
    """What is shown of a finding whose cause the test `first` has; the slope is 0 if the verdict is on no growth."""

    finding: str
    first: str
    outcome: Outcome
    resource: str
    slope: float

    @classmethod
    def of(cls, finding: Finding, first: str) -> SameCause:
        verdict = finding.verdict
        slope = verdict.slope if finding.scaled is None and verdict.outcome in ("leak", "unclosed") else 0.0
        return cls(finding.fingerprint, first, verdict.outcome, verdict.resource, slope)


class SameCauseReport(FindingReport):
    """The report of one or several tests with one cause: on the terminal, a line that names the first test with it."""

    def __init__(self, replaced: Any, tests: Sequence[SameCause]) -> None:
        self.same = one = tests[0]
        begin = f"{one.outcome.replace('_', ' ').upper()} same as {short_id(one.finding)} ("
        rates = format_rates([test.slope for test in tests], one.traits.unit)
        end = f"): {one.resource} {rates}" if one.slope else ")"
        room = max(_MIN_NAME, WIDTH - len(begin) - len(end))
        lines = [f"{begin}{shorten(one.first, room)}{end}"]
        if len(tests) > 1:
            lines.append(f"  -v shows all {len(tests)}")
        super().__init__(replaced, tuple(((printable(line), "verdict"),) for line in lines))


class FoldedFailures:
    """The hook that folds them while pytest prints its sections; pytest counts all of them, and other plugins see all.

    The first test of a cause keeps its block and its line. If several others follow, each section has one entry for
    them. Under ``-v``, nothing is folded, because each test has its block.
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
    """The hook that unfolds the failures while other plugins print, between the sections of pytest."""

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
    """Return the reports of failed tests, with one in place of several that refer to the same block."""
    groups: dict[Any, list[Any]] = {}
    for report in failed:
        same = report.longrepr.same if isinstance(report.longrepr, SameCauseReport) else None
        groups.setdefault((same.finding, same.outcome) if same is not None else id(report), []).append(report)
    return [group[0] if len(group) == 1 else _fold(group) for group in groups.values()]


def _fold(group: list[Any]) -> Any:
    """Return a report for several tests, which is only printed."""
    first, more = group[0], f"and {len(group) - 1} more"
    folded = copy.copy(first)
    file, line, name = first.location
    folded.location, folded.sections = (file, line, f"{name} {more}"), []
    causes = [report.longrepr.same for report in group]
    folded.longrepr = SameCauseReport(first.longrepr, causes)
    folded.longrepr.reprcrash = ReprFileLocation(file, line or 0, f"{more}: same cause as {causes[0].first}")
    return folded
