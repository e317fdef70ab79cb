"""Show the failures of tests with one cause as one, in the sections at the end of pytest's output."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable
from typing import Any, Final

import pytest
from _pytest._code.code import ReprFileLocation

from pytest_leakcheck.plugin.coloured_report import SameCauseReport
from pytest_leakcheck.plugin.terminal_encoding import glyphs_of
from pytest_leakcheck.report.glyphs import Glyphs
from pytest_leakcheck.report.same_cause import same_cause_line

# How the reporter calls the list of the tests that have failed.
_FAILED: Final = "failed"


class FoldedFailures:
    """The hook that folds them while pytest prints its sections; registered with ``--leakcheck``.

    The first test of a cause keeps its block and its line. If several others follow, each section has one entry for
    them, which counts them. pytest counts all of them, and other plugins see all. Under ``-v``, nothing is folded,
    because each test has its block.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.whole: list[Any] = []
        config.pluginmanager.register(_WholeInside(self), "leakcheck-whole-failures")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        """Fold before the reporter prints FAILURES, and unfold after its short summary."""
        self.whole = terminalreporter.stats.get(_FAILED, [])
        folded = fold_failures(self.whole, glyphs_of(self._config))
        if len(folded) < len(self.whole):
            terminalreporter.stats[_FAILED] = folded
        try:
            return (yield)
        finally:
            if _FAILED in terminalreporter.stats:
                terminalreporter.stats[_FAILED] = self.whole


class _WholeInside:
    """The hook that unfolds the failures while other plugins print, between the sections of pytest."""

    def __init__(self, folded: FoldedFailures) -> None:
        self._folded = folded

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        folded = terminalreporter.stats.get(_FAILED)
        if folded is not None:
            terminalreporter.stats[_FAILED] = self._folded.whole
        try:
            return (yield)
        finally:
            if folded is not None:
                terminalreporter.stats[_FAILED] = folded


def fold_failures(failed: Iterable[Any], glyphs: Glyphs) -> list[Any]:
    """Return the reports of failed tests, with one in place of several that refer to the same block."""
    groups: dict[Any, list[Any]] = {}
    for report in failed:
        same = report.longrepr.same if isinstance(report.longrepr, SameCauseReport) else None
        groups.setdefault((same.finding, same.outcome) if same is not None else id(report), []).append(report)
    return [group[0] if len(group) == 1 else _fold(group, glyphs) for group in groups.values()]


def _fold(group: list[Any], glyphs: Glyphs) -> Any:
    """Return a report for several tests, which is only printed."""
    first, more = group[0], f"and {len(group) - 1} more"
    folded = copy.copy(first)
    file, line, name = first.location
    folded.location, folded.sections = (file, line, f"{name} {more}"), []
    causes = [report.longrepr.same for report in group]
    shown = [same_cause_line(causes, glyphs), f"  -v shows all {len(group)}"]
    folded.longrepr = SameCauseReport(first.longrepr, causes[0], "\n".join(shown))
    folded.longrepr.reprcrash = ReprFileLocation(file, line or 0, f"{more}: same cause as {causes[0].first}")
    return folded
