"""Collect the findings of a session; write the summary and the JSON report.

A finding is the verdict on one test. Findings arrive attached to test reports, including the reports that xdist workers
send.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_leakcheck.attribution.project_packages import unknown_packages
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.coloured_report import ColouredReport, has_colours
from pytest_leakcheck.plugin.debugger import find_debugger
from pytest_leakcheck.plugin.fixture import UNUSED
from pytest_leakcheck.plugin.item_reports import findings_of, to_text
from pytest_leakcheck.plugin.terminal_encoding import glyphs_of
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.report import json_file
from pytest_leakcheck.report.glyphs import printable
from pytest_leakcheck.report.journal import Journal
from pytest_leakcheck.report.terminal_summary import (
    Tally,
    first_line,
    nothing_measured,
    summary_lines,
    unknown_blame,
    unmeasured_lines,
)

_Returned = TypeVar("_Returned")
_MARKUP: Mapping[str, dict[str, bool]] = {
    "red": {"red": True},
    "yellow": {"yellow": True},
    "green": {"green": True},
    "dim": {"light": True},
}
# The letter and the word under which pytest shows a test that failed by its verdict.
_STATUS_WORDS: Mapping[str, tuple[str, str]] = {
    "leak": ("L", "LEAK"),
    "over_budget": ("O", "OVER BUDGET"),
    "unclosed": ("U", "UNCLOSED"),
    "inconclusive": ("I", "INCONCLUSIVE"),
    "unavailable": ("A", "UNAVAILABLE"),
}


class SessionReport:
    """The hooks that collect and print findings; registered with ``--leakcheck``."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Check the path of the JSON report; register the hooks of an xdist controller.

        Raises:
            pytest.UsageError: The JSON report cannot be written to the given path.
        """
        self._config, self._settings = config, settings
        # As text, because of the time that each collection of garbage takes (`item_reports.attach`).
        self._shown: list[str] = []
        self._tally = Tally()
        self._journal: Journal | None = None
        self._unmeasured: dict[str, str] = {}
        self._unknown_blame = frozenset(settings.blame)
        self._began = clock.monotonic()
        self._json: Path | None = None
        self._write_error = ""
        if not xdist.is_worker(config) and settings.json:
            self._json = Path(config.invocation_params.dir, settings.json)
            self._journal = Journal(self._json)
            wrong = json_file.check_writable(self._json)
            if wrong:
                raise pytest.UsageError(
                    f"--leakcheck-json={settings.json} (command line): {wrong}; name a file in a writable folder"
                )
        if config.pluginmanager.hasplugin("xdist") and not xdist.is_worker(config):
            config.pluginmanager.register(xdist.Controller(config), "leakcheck-xdist")

    def pytest_report_header(self, config: pytest.Config) -> str:
        if debugger := find_debugger(config):
            return f"leakcheck: no verdicts: {debugger}"
        effort = f"{self._settings.iterations} iterations" if self._settings.iterations else "adaptive"
        return f"leakcheck: {effort}, at most {self._settings.max_time:g} s per test"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if self._journal is not None:
            self._journal.begin()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, _Returned, _Returned]:
        self._take(report)
        result = yield
        if reason := getattr(report, "leakcheck_unmeasured", ""):
            self._unmeasured[report.nodeid] = reason
        # By now, each plugin has written or sent what it needs of the report, which pytest keeps to the end.
        if hasattr(report, "leakcheck"):
            del report.leakcheck
        return result

    def _take(self, report: pytest.TestReport) -> None:
        """Take the findings of a report."""
        if isinstance(report, pytest.SubtestReport):
            return
        if text := getattr(report, "leakcheck", ""):
            for finding in findings_of(text):
                self._add(finding)
            if self._unknown_blame:
                # The process that runs the test receives the report first, and knows which modules the test uses.
                if not hasattr(report, "leakcheck_unknown_blame"):
                    report.leakcheck_unknown_blame = sorted(unknown_packages(self._settings.blame))  # type: ignore[attr-defined]
                self._unknown_blame &= frozenset(report.leakcheck_unknown_blame)
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and crash.message.startswith("LeakError: ") and has_colours(self._config):
            report.longrepr = ColouredReport(report.longrepr)

    def _add(self, finding: Finding) -> None:
        self._tally.add(finding)
        if finding.colour == "green" and self._settings.json_readings != "all":
            finding = replace(finding, recording=replace(finding.recording, series=()))
        if self._journal is not None:
            with room_for_descriptors():
                self._journal.add(finding)
        if finding.colour != "green" or self._wanted in ("all", "sensitivity"):
            self._shown.append(to_text(finding))

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
        if isinstance(report, pytest.SubtestReport):
            return None
        red = getattr(report, "leakcheck_red", "")
        if report.when != "call" or not report.failed or not red:
            return None
        letter, word = _STATUS_WORDS[red]
        return "failed", letter, word

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        self._write_unmeasured(terminalreporter)
        shown = findings_of("".join(self._shown))
        if self._tally.worst and (line := unknown_blame(self._unknown_blame, shown, self._settings)):
            terminalreporter.write_line(line, yellow=True)
        if not self._tally.worst and not self._json:
            return
        quiet = config.get_verbosity() < 0
        glyphs = glyphs_of(config)
        headline = first_line(self._tally, clock.monotonic() - self._began, glyphs)
        if terminalreporter.no_summary:
            terminalreporter.write_line(f"leakcheck: {headline}")
        else:
            if not quiet:
                terminalreporter.write_sep("=", "leakcheck")
            terminalreporter.write_line(headline)
            for colour, line in summary_lines(shown, self._tally, self._wanted, glyphs):
                terminalreporter.write_line(printable(line), **_MARKUP[colour])
        if self._write_error:
            terminalreporter.write_line(f"leakcheck: {self._write_error}", red=True)
        elif self._json and not quiet:
            terminalreporter.write_line(f"leakcheck: wrote {self._json}")

    def _write_unmeasured(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write how many tests have no verdict although they asked for one, and why."""
        reasons = [one for one in self._unmeasured.values() if one != UNUSED or terminalreporter.verbosity > 0]
        lines = unmeasured_lines(reasons)
        passed = len(terminalreporter.getreports("passed"))
        if not self._tally.worst and not lines and passed:
            lines = nothing_measured(passed)
        for line in lines:
            terminalreporter.write_line(line, yellow=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._journal is None:
            return
        try:
            with room_for_descriptors():
                self._journal.finish()
        except OSError as error:
            self._write_error = f"could not write {self._json}: {error.strerror or error}"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
