"""In a job of GitHub Actions, annotate the lines that leak, and add a table to the summary of the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_leakcheck.model.cause import Causes
from pytest_leakcheck.plugin.undisturbed import undisturbed_writing
from pytest_leakcheck.report.github import annotate, summary_table
from pytest_leakcheck.report.glyphs import printable


class GithubActions:
    """The hooks that report to GitHub; registered in the process that prints, in a job of GitHub Actions."""

    def __init__(self, config: pytest.Config, headline: Callable[[], str]) -> None:
        self._headline = headline
        self._causes = Causes()
        self._root = Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)
        # Kept now, since a test may change the environment.
        self._summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
        self.add = self._causes.add
        # That plugin annotates each failed test, and so each leak.
        named = [f"{name} {getattr(one, '__name__', '')}" for name, one in config.pluginmanager.list_name_plugin()]
        self._annotates = not any("pytest_github_actions_annotate_failures" in one for one in named)

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
