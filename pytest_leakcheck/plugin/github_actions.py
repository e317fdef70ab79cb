"""In a job of GitHub Actions, annotate the lines that leak, and add a table to the summary of the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from pytest_leakcheck.model.cause import Causes
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.plugin.undisturbed import undisturbed_writing
from pytest_leakcheck.report.github import annotate, summary_table
from pytest_leakcheck.report.glyphs import printable

# It annotates each failed test, and so each leak.
_ANNOTATING_PLUGIN: Final = "pytest_github_actions_annotate_failures"


def is_used() -> bool:
    """Return whether this process runs in a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


class GithubActions:
    """The hooks that report to GitHub; registered in the process that prints, if `is_used`."""

    def __init__(self, config: pytest.Config, headline: Callable[[], str]) -> None:
        self._headline = headline
        self._causes = Causes()
        self._root = Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)
        # Kept now, since a test may change the environment.
        self._summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
        self._annotates = not any(
            name.startswith(_ANNOTATING_PLUGIN) or getattr(plugin, "__name__", "").startswith(_ANNOTATING_PLUGIN)
            for name, plugin in config.pluginmanager.list_name_plugin()
        )

    def add(self, finding: Finding) -> None:
        self._causes.add(finding)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        causes = self._causes.list()
        if self._annotates:
            for line in annotate(causes, self._root):
                terminalreporter.ensure_newline()
                terminalreporter.write_line(printable(line))
        if not self._summary or not (headline := self._headline()):
            return
        try:
            with undisturbed_writing(), Path(self._summary).open("a", encoding="utf-8", errors="replace") as file:
                file.write(summary_table(headline, causes, self._root))
        except OSError as error:
            told = f"leakcheck: could not write GITHUB_STEP_SUMMARY={self._summary}: {error.strerror or error}"
            terminalreporter.write_line(printable(told), yellow=True)
