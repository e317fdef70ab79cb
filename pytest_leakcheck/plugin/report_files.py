"""Write the files of a session, with what it found: ``--leakcheck-json`` and ``--leakcheck-html``."""

from __future__ import annotations

import contextlib
import platform
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.cause import Causes
from pytest_leakcheck.model.error_text import describe_error
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import added_rows
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.plugin.appended_file import AppendedFile
from pytest_leakcheck.plugin.item_reports import findings_of
from pytest_leakcheck.plugin.rerun_command import MORE_TIME, command_of
from pytest_leakcheck.plugin.undisturbed import undisturbed_writing
from pytest_leakcheck.probes.command_lines import mask_secrets
from pytest_leakcheck.report import json_file
from pytest_leakcheck.runner.environment import describe_environment, find_commit


class ReportFiles:
    """The files of a session; only the process that prints has them. Use it once: `begin`, `add` ..., `finish`."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Nothing is written before `begin`."""
        self._settings = settings
        self._title = f"Leaks in {config.rootpath.name}"
        folder = config.invocation_params.dir
        self._json = AppendedFile(folder / settings.json) if settings.json else None
        self._html = AppendedFile(folder / settings.html) if settings.html else None
        self._causes = Causes()
        # As text: objects would make each later collection of garbage slower.
        self._lines: list[str] = []
        self.written: list[Path] = []

    def begin(self) -> None:
        """Create the files or empty them, or raise `pytest.UsageError`."""
        for file, given in ((self._html, f"html={self._settings.html}"), (self._json, f"json={self._settings.json}")):
            try:
                if file is not None:
                    file.begin()
            except OSError as error:
                why = f"{error.strerror}; name a file in a writable folder"
                raise pytest.UsageError(f"--leakcheck-{given} (command line): {why}") from None
        self._try_to_write(json_file.FirstLine(added_rows()))

    def add(self, finding: Finding) -> None:
        if finding.colour == "green" and self._settings.json_readings != "all":
            finding = replace(finding, recording=replace(finding.recording, series=()))
        self._causes.add(finding)
        self._try_to_write(finding)
        if self._html is not None:
            self._lines.append(json_file.to_line(finding))

    def finish(self, describe: Callable[[], Session]) -> Iterator[str]:
        """Write what is left, and yield what went wrong."""
        for file, make in ((self._json, self._last_line), (self._html, self._page)):
            if file is None:
                continue
            try:
                with undisturbed_writing():
                    file.write(make(describe()))
                    file.close()
            except Exception as error:  # noqa: BLE001 - a test may have replaced anything
                reason = error.strerror if isinstance(error, OSError) else ""
                yield f"could not write {file.path}: {reason or describe_error(error)}"
            else:
                self.written.append(file.path)

    def _try_to_write(self, content: json_file.FirstLine | Finding) -> None:
        """Write a line of the JSON report; what cannot be written yet is written with the next one."""
        if self._json is not None:
            with undisturbed_writing():
                line = json_file.to_line(content)
                with contextlib.suppress(Exception):
                    self._json.write(line)

    def _last_line(self, session: Session) -> str:
        return json_file.to_line(json_file.LastLine(session, self._causes.list()))

    def _page(self, session: Session) -> str:
        # Imported only here: what renders the page is not loaded while tests are measured.
        from pytest_leakcheck.report.html.findings_page import page_of_report
        from pytest_leakcheck.report.html.render import render

        findings = tuple(findings_of("".join(self._lines)))
        return render(page_of_report(json_file.Report(findings, {}, session), self._title))


def describe_session(
    config: pytest.Config, settings: Settings, headline: str, notes: tuple[str, ...], seconds: float
) -> Session:
    """Describe a session that ends; `headline` accounts for all tests, and `notes` belong to no single finding."""
    try:
        own = version("pytest-leakcheck")
    except PackageNotFoundError:
        # A checkout that is on the path but not installed.
        own = "unknown"
    return Session(
        headline,
        notes,
        shlex.join(("pytest", *mask_secrets(map(str, config.invocation_params.args)))),
        platform.node(),
        find_commit(config.rootpath),
        round(seconds, 3),
        {"pytest-leakcheck": own, "pytest": pytest.__version__} | describe_environment(),
        command_of(settings),
        f"--leakcheck-max-time={MORE_TIME * settings.max_time:g}",
        settings.source,
    )
