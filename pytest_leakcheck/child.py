"""The far side of an isolated test: loaded by ``-p`` in the process that `isolate` starts, it runs one item and reports.

The command line of the session is parsed again here, so plugins, conftests, configuration and options are the same. Then
what is not for a child is put out of force: to choose tests, to stop, to start workers, to write reports.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.config import create_terminal_writer

from pytest_leakcheck import fresh
from pytest_leakcheck.probes.heap import is_quiet
from pytest_leakcheck.protocol import PLAN, PROCESS
from pytest_leakcheck.session import ENCODING

# By the name under which pytest and its plugins keep an option; those that are not there are left alone.
_OUT_OF_FORCE: Final[dict[str, Any]] = {
    # Choosing tests: this one has been chosen.
    **dict.fromkeys(("keyword", "markexpr"), ""),
    **dict.fromkeys(("pyargs", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "stepwise_reset"), False),
    **dict.fromkeys(("deselect", "durations"), None),
    # Stopping, debuggers, workers.
    **dict.fromkeys(("usepdb", "trace", "looponfail", "distload"), False),
    **dict.fromkeys(("numprocesses", "maxprocesses"), None),
    "maxfail": 0,
    "dist": "no",
    "tx": [],
    # Files that the session writes, from what is reported here, or keeps.
    **dict.fromkeys(("xmlpath", "leakcheck_json", "report_log", "htmlpath", "pastebin"), None),
    **dict.fromkeys(("json_report", "cacheclear"), False),
    "log_file": os.devnull,
}
# They would overwrite what the session remembers of the last run.
_BLOCKED: Final = ("lfplugin", "nfplugin", "stepwiseplugin")
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What a child is told, beside the command line: a JSON object.

    Attributes:
        test: The node id, as it is collected here.
        file: Where it is collected from, from the folder that pytest was started in.
        reports: Where reports go, a line of JSON each.
        folder: What both processes share.
        basetemp: The folder of ``tmp_path``; None leaves it to pytest.
        encoding: That of the session's terminal.
        color: Whether that shows colours: ``yes`` or ``no``.
        parent: The process to die with; 0 for none.
        worker: What an xdist controller told the worker; None outside of one.
    """

    test: str
    file: str
    reports: str
    folder: str
    basetemp: str | None
    encoding: str
    color: str
    parent: int
    worker: dict[str, Any] | None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--leakcheck-task", metavar="PATH", help="Internal: what an isolated test is told.")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Before anything is configured."""
    task = Task(**fresh.from_line(Path(config.option.leakcheck_task).read_text(encoding="utf-8")))
    _die_with(task.parent)
    # Where it hangs is told when it is ended for that; standard error as it is before it is captured.
    faulthandler.register(signal.SIGTERM, os.fdopen(os.dup(2), "w"), all_threads=True, chain=True)
    changes = {**_OUT_OF_FORCE, "color": task.color, "basetemp": task.basetemp}
    for name, value in changes.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.args = [task.file]
    config.stash[ENCODING] = task.encoding
    config.stash[PROCESS] = {"isolated": _describe_allocator()}
    if task.worker is not None:
        config.workerinput, config.workeroutput = task.worker, {}  # type: ignore[attr-defined]
    for name in _BLOCKED:
        config.pluginmanager.set_blocked(name)
    config.pluginmanager.register(Child(task), "leakcheck-child")
    return (yield)


class Child:
    """The hooks that keep one item, count its iterations and write its reports."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._board = fresh.Board(fresh.board_of(Path(task.folder)))

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config
        terminal = config.pluginmanager.getplugin("terminalreporter")
        if terminal is not None:
            # Other plugins ask for it, so it stays; the session's own does the talking.
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # as long as this process
            terminal._tw = create_terminal_writer(config, nowhere)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        result = yield
        items[:] = [item for item in items if item.nodeid == self._task.test][:1]
        for item in items:
            if PLAN in item.stash:
                item.stash[PLAN] = replace(item.stash[PLAN], process=config.stash[PROCESS])
        if not items:
            self._write("missing", self._task.test)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._board.iteration += 1

    # After those who still change the report: a test with failed subtests is made to fail as it is shown.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not getattr(report, "leakcheck_silent", False):
            hook = self._config.hook
            self._write("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("not collected", report.longreprtext)

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        # The session has had its own of collection and configuration.
        if when == "runtest":
            category = warning_message.category
            self._write(
                "warning",
                {
                    "text": str(warning_message.message),
                    "category": [category.__module__, category.__qualname__],
                    "filename": warning_message.filename,
                    "lineno": warning_message.lineno,
                    "nodeid": nodeid,
                    "location": location,
                },
            )

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self._board.finish()

    def _write(self, kind: str, value: Any) -> None:
        # Opened each time: a descriptor that is kept might be closed by the test, and its number be another file by then.
        with Path(self._task.reports).open("a", encoding="utf-8") as file:
            file.write(fresh.to_line([kind, value]) + "\n")


def _describe_allocator() -> str:
    """What the start has come to: tunables are glibc's alone, and the user's own win."""
    return "tcache off, mmap threshold 128 KiB" if is_quiet() else "the allocator could not be made quiet"


def _die_with(parent: int) -> None:
    """Linux: be killed when the process that waits for this one is, so that nobody is left to run for ever."""
    if not parent or not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
