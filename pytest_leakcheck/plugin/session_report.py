"""Collect the findings of a session; write the summary and the JSON report.

A finding is the verdict on one test. Findings arrive attached to test reports, including the reports that xdist workers
send.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.verdict import WORST_FIRST
from pytest_leakcheck.plugin import xdist
from pytest_leakcheck.plugin.coloured_report import ColouredReport, has_colours
from pytest_leakcheck.plugin.debugger import find_debugger
from pytest_leakcheck.plugin.fixture import UNUSED
from pytest_leakcheck.plugin.terminal_encoding import glyphs_of
from pytest_leakcheck.report import json_file
from pytest_leakcheck.report.terminal_summary import first_line, nothing_measured, summary_lines, unmeasured_lines

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
        self._findings: list[Finding] = []
        self._unmeasured: dict[str, str] = {}
        self._began = time.perf_counter()
        self._json: Path | None = None
        self._write_error = ""
        if not xdist.is_worker(config) and settings.json:
            self._json = Path(config.invocation_params.dir, settings.json)
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
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if isinstance(report, pytest.SubtestReport):
            return
        if reason := getattr(report, "leakcheck_unmeasured", ""):
            self._unmeasured[report.nodeid] = reason
        found = cast("list[dict[str, Any]]", getattr(report, "leakcheck", ()))
        self._findings += [decode(Finding, data) for data in found]
        crash = getattr(report.longrepr, "reprcrash", None)
        if crash is not None and crash.message.startswith("LeakError: ") and has_colours(self._config):
            report.longrepr = ColouredReport(report.longrepr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport
    ) -> tuple[str, str, str | tuple[str, Mapping[str, bool]]] | None:
        if isinstance(report, pytest.SubtestReport):
            return None
        found = cast("list[dict[str, Any]]", getattr(report, "leakcheck", ()))
        red = {
            data["verdict"]["outcome"]
            for data in found
            if data["colour"] == "red" and data["recording"]["stopped"] != "lost"
        }
        if report.when != "call" or not report.failed or not red:
            return None
        letter, word = _STATUS_WORDS[min(red, key=WORST_FIRST.index)]
        return "failed", letter, word

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        self._write_unmeasured(terminalreporter)
        if not self._findings and not self._json:
            return
        quiet = config.get_verbosity() < 0
        wanted = self._settings.summary
        if wanted == "failed" and config.get_verbosity() > 0:
            wanted = "sensitivity"
        glyphs = glyphs_of(config)
        headline = first_line(self._findings, time.perf_counter() - self._began, glyphs)
        if terminalreporter.no_summary:
            terminalreporter.write_line(f"leakcheck: {headline}")
        else:
            if not quiet:
                terminalreporter.write_sep("=", "leakcheck")
            terminalreporter.write_line(headline)
            for colour, line in summary_lines(self._findings, "failed" if quiet else wanted, glyphs):
                terminalreporter.write_line(line, **_MARKUP[colour])
        if self._write_error:
            terminalreporter.write_line(f"leakcheck: {self._write_error}", red=True)
        elif self._json and not quiet:
            terminalreporter.write_line(f"leakcheck: wrote {self._json}")

    def _write_unmeasured(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write how many tests have no verdict although they asked for one, and why."""
        reasons = [one for one in self._unmeasured.values() if one != UNUSED or terminalreporter.verbosity > 0]
        lines = unmeasured_lines(reasons)
        passed = len(terminalreporter.getreports("passed"))
        if not self._findings and not lines and passed:
            lines = nothing_measured(passed)
        for line in lines:
            terminalreporter.write_line(line, yellow=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._json:
            return
        try:
            json_file.write(self._json, self._findings)
        except OSError as error:
            self._write_error = f"could not write {self._json}: {error.strerror or error}"
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
