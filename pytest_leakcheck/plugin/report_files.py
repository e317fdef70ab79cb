"""Write the files of a session, with what it found: ``--leakcheck-json`` and ``--leakcheck-html``."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.error_text import describe_error
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.plugin.item_reports import findings_of, to_text
from pytest_leakcheck.plugin.undisturbed import undisturbed_writing
from pytest_leakcheck.probes.command_lines import mask_secrets
from pytest_leakcheck.report import json_file
from pytest_leakcheck.report.journal import Journal
from pytest_leakcheck.report.output_file import check_writable, write_whole
from pytest_leakcheck.runner.environment import describe_environment, find_commit

# The command for a test whose cause was not found in time allows this multiple of the time.
_MORE_TIME: Final = 4


class ReportFiles:
    """The files of a session; only the process that prints has them. Use it once: `begin`, `add` ..., `finish`."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Check the paths, and raise `pytest.UsageError` if a file cannot be written there; nothing is written yet."""
        self._settings = settings
        self._title = f"Leaks in {config.rootpath.name}"
        json = _check_path(config, "--leakcheck-json", settings.json)
        self._html = _check_path(config, "--leakcheck-html", settings.html)
        self._journal = Journal(json) if json is not None else None
        # As text: objects would make each later collection of garbage slower.
        self._lines: list[str] = []
        self._files: dict[Path, Callable[[Session], None]] = {}
        if json is not None:
            self._files[json] = self._write_json
        if self._html is not None:
            self._files[self._html] = self._write_html
        self.written: list[Path] = []

    def begin(self) -> None:
        """Begin the files that are written while the session runs."""
        if self._journal is not None:
            self._journal.begin()

    def add(self, finding: Finding) -> None:
        if finding.colour == "green" and self._settings.json_readings != "all":
            finding = replace(finding, recording=replace(finding.recording, series=()))
        if self._journal is not None:
            with undisturbed_writing():
                self._journal.add(finding)
        if self._html is not None:
            self._lines.append(to_text(finding))

    def finish(self, describe: Callable[[], Session]) -> Iterator[str]:
        """Write the files, and yield what went wrong. `describe` is called once, and only if there are files."""
        describe = cache(describe)
        yield from filter(None, (self._try_to_write(path, write, describe) for path, write in self._files.items()))

    @property
    def wanted(self) -> bool:
        """Whether the session has any file."""
        return bool(self._files)

    def _try_to_write(self, path: Path, write: Callable[[Session], None], describe: Callable[[], Session]) -> str:
        """Write one file; return what went wrong."""
        try:
            with undisturbed_writing():
                write(describe())
        except Exception as error:  # noqa: BLE001 - a test may have replaced anything; a journal has all findings
            reason = error.strerror if isinstance(error, OSError) else ""
            return f"could not write {path}: {reason or describe_error(error)}"
        self.written.append(path)
        return ""

    def _write_json(self, session: Session) -> None:
        assert self._journal is not None
        self._journal.finish(session)

    def _write_html(self, session: Session) -> None:
        # Imported only here: what renders the page is not loaded while tests are measured.
        from pytest_leakcheck.report.html.findings_page import page_of_document
        from pytest_leakcheck.report.html.render import render

        assert self._html is not None
        document = replace(json_file.document(findings_of("".join(self._lines))), session=session)
        write_whole(self._html, render(page_of_document(document, self._title)))


def describe_session(
    config: pytest.Config, settings: Settings, headline: str, notes: tuple[str, ...], seconds: float
) -> Session:
    """Describe a session that ends; `headline` accounts for all tests, and `notes` belong to no single finding."""
    versions = {"pytest-leakcheck": _own_version(), "pytest": pytest.__version__}
    return Session(
        headline,
        notes,
        shlex.join(("pytest", *mask_secrets(map(str, config.invocation_params.args)))),
        platform.node(),
        find_commit(config.rootpath),
        round(seconds, 3),
        versions | describe_environment(),
        # Without its scope, a test without a mark would not be judged.
        "pytest --leakcheck-scope=all" if settings.scope == "all" else "pytest --leakcheck",
        f"--leakcheck-max-time={_MORE_TIME * settings.max_time:g}",
        settings.source,
    )


def _own_version() -> str:
    """Return the version of the plugin; "unknown" for a checkout that is on the path but not installed."""
    try:
        return version("pytest-leakcheck")
    except PackageNotFoundError:
        return "unknown"


def _check_path(config: pytest.Config, flag: str, given: str) -> Path | None:
    """Return the path of a file; None if none is wanted. Raise `pytest.UsageError` if it cannot be written."""
    if not given:
        return None
    path = Path(config.invocation_params.dir, given)
    if wrong := check_writable(path):
        raise pytest.UsageError(f"{flag}={given} (command line): {wrong}; name a file in a writable folder")
    return path
