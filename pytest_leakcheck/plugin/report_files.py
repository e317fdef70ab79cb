"""Write a session's files: JSON report, page, memory snapshots, and the summary of a GitHub job."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model import describe_error
from pytest_leakcheck.model.finding import RED, Causes, Finding
from pytest_leakcheck.model.regular_file import (
    PAGE,
    FileError,
    Ours,
    check_replaceable,
    replace_file,
)
from pytest_leakcheck.model.resources import DEVICE_MEMORY, added_rows
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.item_reports import MORE_TIME, command_of, findings_of
from pytest_leakcheck.plugin.undisturbed import AppendedFile, undisturbed_writing
from pytest_leakcheck.probes.processes import mask_secrets
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.glyphs import printable
from pytest_leakcheck.report.json_file import REPORT, FirstLine, LastLine, Report, Session, to_line
from pytest_leakcheck.report.summary import annotate, summary_table
from pytest_leakcheck.runner.environment import describe_environment, find_commit
from pytest_leakcheck.runner.repetition import Repetition

_SNAPSHOT: Final = Ours("a memory snapshot", re.compile(pickle.PROTO))
# Files that pytest and other plugins write: the name of the option, and how it is given.
_OTHER_FILES: Final[Mapping[str, str]] = {
    "xmlpath": "--junit-xml",
    "log_file": "--log-file",
    "report_log": "--report-log",
    "htmlpath": "--html",
    "json_report_file": "--json-report-file",
}


class ReportFiles:
    """The files of a session, in the process that prints; use once: `begin`, `add`..., `finish`."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Nothing is written before `begin`."""
        self._settings = settings
        self._title = f"Leaks in {config.rootpath.name}"
        folder = config.invocation_params.dir
        self._json = AppendedFile(folder / settings.json) if settings.json else None
        self._html = folder / settings.html if settings.html else None
        self._causes = Causes()
        # As text: objects would make each later collection of garbage slower.
        self._lines: list[str] = []
        self.written: list[Path] = []
        self._refuse_shared(config)
        with self._explained("json"):
            if self._json is not None:
                check_replaceable(self._json.path, REPORT)
        with self._explained("html"):
            if self._html is not None:
                check_replaceable(self._html, PAGE)

    def begin(self) -> None:
        """Begin the report, or raise `pytest.UsageError`; an earlier page stays until the end."""
        with self._explained("json"):
            if self._json is not None:
                self._json.begin(to_line(FirstLine(added_rows())), REPORT)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileError as error:
            raise pytest.UsageError(
                f"--leakcheck-{name}={getattr(self._settings, name)} (command line): {error}"
            ) from None

    def _refuse_shared(self, config: pytest.Config) -> None:
        """Raise `pytest.UsageError` if two of the files that a session writes are the same."""
        baseline = self._settings.baseline or "leakcheck-baseline.json"
        ours = {"--leakcheck-json": self._settings.json, "--leakcheck-html": self._settings.html}
        others = {
            flag: str(config.getoption(name, None) or "") for name, flag in _OTHER_FILES.items()
        }
        if not others["--log-file"]:
            # Without pytest's logging, there is no such key.
            with contextlib.suppress(ValueError):
                others["log_file"] = str(config.getini("log_file") or "")
        folder = config.invocation_params.dir
        named = {flag: Path(folder, path) for flag, path in (ours | others).items() if path}
        if not self._settings.no_baseline:
            named["the file of known leaks"] = Path(config.rootpath, baseline)
        flags: dict[str, str] = {}
        for flag, path in named.items():
            # A hard link is another name of one file.
            first = flags.setdefault(os.path.realpath(path), flag)
            if first != flag and first in ours:
                raise pytest.UsageError(
                    f"{first}={ours[first]}: {flag} names the same file; name another one"
                )

    def add(self, finding: Finding, line: str) -> None:
        """Add a finding and its line; if it cannot be written yet, the next call writes it."""
        self._causes.add(finding)
        if self._html is not None:
            self._lines.append(line)
        if self._json is not None:
            with undisturbed_writing(), contextlib.suppress(Exception):
                self._json.write(line)

    def finish(self, describe: Callable[[], Session]) -> Iterator[str]:
        """Write what is left, and yield what went wrong."""
        for path in (self._json.path if self._json is not None else None, self._html):
            if path is None:
                continue
            try:
                with undisturbed_writing():
                    session = describe()
                    if path == self._html:
                        replace_file(
                            path, self._page(session).encode(errors="backslashreplace"), PAGE
                        )
                    elif self._json is not None:
                        self._json.write(to_line(LastLine(session, self._causes.list())))
            except FileError as error:
                yield f"could not write {error}"
            except Exception as error:  # noqa: BLE001 - a test may have replaced anything
                reason = error.strerror if isinstance(error, OSError) else ""
                yield f"could not write {path}: {reason or describe_error(error)}"
            else:
                self.written.append(path)

    def _page(self, session: Session) -> str:
        # Imported only here: what renders the page is not loaded while tests are measured.
        from pytest_leakcheck.report.html.findings_page import page_of_report
        from pytest_leakcheck.report.html.page import render

        findings = tuple(findings_of("".join(self._lines)))
        return render(page_of_report(Report(findings, {}, session), self._title))


def describe_session(
    config: pytest.Config, settings: Settings, headline: str, notes: tuple[str, ...], seconds: float
) -> Session:
    """Describe a session that ends; `headline` covers all tests, `notes` belong to no finding."""
    try:
        own = version("pytest-leakcheck")
    except PackageNotFoundError:
        # A checkout that is on the path but not installed.
        own = "unknown"
    words = mask_secrets(
        ("pytest", *map(str, config.invocation_params.args)), str(config.invocation_params.dir)
    )
    return Session(
        headline,
        notes,
        " ".join(word if "…" in word else shlex.quote(word) for word in words),
        platform.node(),
        find_commit(config.rootpath),
        round(seconds, 3),
        {"pytest-leakcheck": own, "pytest": pytest.__version__} | describe_environment(),
        command_of(settings),
        f"--leakcheck-max-time={MORE_TIME * settings.max_time:g}",
        settings.source,
        GUIDE,
    )


class GithubActions:
    """The hooks that annotate leaking lines, and add a table to a GitHub Actions job's summary."""

    def __init__(self, config: pytest.Config, headline: Callable[[], str]) -> None:
        self._headline = headline
        self._causes = Causes()
        self._root = Path(os.environ.get("GITHUB_WORKSPACE") or config.rootpath)
        # Kept now, since a test may change the environment.
        self._summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
        self.add = self._causes.add
        # That plugin annotates each failed test, and so each leak.
        named = [
            f"{name} {getattr(plugin, '__name__', '')}"
            for name, plugin in config.pluginmanager.list_name_plugin()
        ]
        self._annotates = not any("pytest_github_actions_annotate_failures" in one for one in named)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        causes = self._causes.list()
        if self._annotates:
            for line in annotate(causes, self._root):
                terminalreporter.ensure_newline()
                terminalreporter.write_line(line)
        if not self._summary or not (headline := self._headline()):
            return
        try:
            with undisturbed_writing():
                AppendedFile(Path(self._summary)).write(summary_table(headline, causes, self._root))
        except OSError as error:
            told = f"leakcheck: could not write GITHUB_STEP_SUMMARY={self._summary}: {error.strerror or error}"
            terminalreporter.write_line(printable(told), yellow=True)


def folder_of_reports(config: pytest.Config, settings: Settings) -> str:
    """Return the folder of the page or of the JSON report; empty if the session writes neither."""
    if keys.PROCESS in config.stash:
        child: Any = config.pluginmanager.getplugin("leakcheck-child")
        return str(child.reports)
    given = settings.html or settings.json
    return str(Path(config.invocation_params.dir, given).parent) if given else ""


class DeviceSnapshot:
    """torch's snapshot of a test that leaks CUDA memory, for the viewer pytorch.org/memory_viz.

    torch records its history only while the cause is searched for. The file lies beside the JSON
    report or the page. Use it for one test: `follow` after each iteration, `take`, and `stop` in
    any case.
    """

    def __init__(self, item: pytest.Item, settings: Settings) -> None:
        self._folder = folder_of_reports(item.config, settings)
        # torch's module of the recording that runs; None if none does.
        self._recording: Any = None
        self._failed = ""

    def follow(self, repetition: Repetition) -> None:
        """Record allocations from now on, if the cause of growth on a device is searched for."""
        if (
            repetition.searched != DEVICE_MEMORY
            or not self._folder
            or self._recording is not None
            or self._failed
        ):
            return
        try:
            memory = _find_memory()
            # A program that records its own history keeps it. Older releases of torch cannot tell.
            if (
                memory is not None
                and not getattr(sys.modules["torch"]._C, "_cuda_isHistoryEnabled", bool)()
            ):
                # Each entry takes a few KiB of the host's memory.
                memory._record_memory_history(max_entries=100_000, stacks="python")
                self._recording = memory
        except Exception as error:  # noqa: BLE001 - the snapshot is of less value than the verdict
            self._failed = describe_error(error)

    def take(self, finding: Finding) -> Finding:
        """Write the snapshot of a finding that is red for CUDA memory; return it with the path."""
        verdict = finding.verdict
        if not self._folder or verdict.resource != DEVICE_MEMORY or verdict.outcome not in RED:
            return finding
        try:
            memory = _find_memory()
            if memory is None:
                return finding
            name = re.sub(r"[^\w.-]", "_", finding.fingerprint, flags=re.ASCII)
            path = Path(self._folder, f"{name}.snapshot.pickle")
            replace_file(path, pickle.dumps(memory._snapshot()), _SNAPSHOT)
        except Exception as error:  # noqa: BLE001 - as above
            return replace(finding, snapshot_error=describe_error(error))
        return replace(finding, snapshot=str(path), snapshot_error=self._failed)

    def stop(self) -> None:
        """End the recording, if there is one."""
        memory, self._recording = self._recording, None
        if memory is not None:
            try:
                memory._record_memory_history(None)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed = describe_error(error)


def _find_memory() -> Any:
    """Return `torch.cuda.memory`; None if this process does not use a CUDA device."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda.memory if torch is not None and torch.cuda.is_initialized() else None
