"""The far side of an isolated test: loaded by ``-p`` in the process that `dispatch` starts, it runs one item and reports.

The command line of the session is parsed again here, so plugins, conftests, configuration and options are the same. Then
what is not for a child is put out of force: to choose tests, to stop, to start workers, to write reports.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import warnings
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.config import create_terminal_writer

from pytest_leakcheck.model.scaling_points import Sizing
from pytest_leakcheck.plugin.isolation.messages import Task
from pytest_leakcheck.plugin.stash import ARGUMENTS, ENCODING, PLAN, PROCESS, SIZE
from pytest_leakcheck.probes.native_heap import is_quiet
from pytest_leakcheck.probes.own_descriptors import room_for_descriptors
from pytest_leakcheck.runner.fork_guard import Origin
from pytest_leakcheck.runner.processes import supervisor

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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--leakcheck-task", metavar="PATH", help="Internal: what an isolated test is told.")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Before anything is configured."""
    task = Task(**supervisor.from_line(Path(config.option.leakcheck_task).read_text(encoding="utf-8")))
    sizing = Sizing(**{**task.sizing, "resources": tuple(task.sizing["resources"])}) if task.sizing else None
    supervisor.die_with(os.getppid() if sizing is not None and sizing.of_processes else task.parent)
    # Where it hangs is told when it is ended for that; standard error as it is before it is captured.
    stack = supervisor.stack_of(Path(task.folder), _rank(sizing)).open("w") if sizing else os.fdopen(os.dup(2), "w")
    faulthandler.register(signal.SIGTERM, stack, all_threads=True, chain=True)
    # Each rank has one of its own: pytest empties it first.
    own = f"-{_rank(sizing)}" if sizing is not None and sizing.of_processes else ""
    basetemp = task.basetemp + own if task.basetemp is not None else None
    changes = {**_OUT_OF_FORCE, "color": task.color, "basetemp": basetemp}
    for name, value in changes.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.args = [task.file]
    config.stash[ENCODING] = task.encoding
    config.stash[ARGUMENTS] = task.arguments
    config.stash[PROCESS] = {"isolated": _describe_allocator()}
    if task.worker is not None:
        config.workerinput, config.workeroutput = task.worker, {}  # type: ignore[attr-defined]
    for name in _BLOCKED:
        config.pluginmanager.set_blocked(name)
    child = Child(task, _rank(sizing))
    config.pluginmanager.register(child, "leakcheck-child")
    if sizing is not None:
        from pytest_leakcheck.plugin.isolation.metered_run import SizedProtocol

        config.stash[SIZE] = sizing.size
        config.pluginmanager.register(SizedProtocol(sizing, child.board, child.write), "leakcheck-sized")
    return (yield)


def _rank(sizing: Sizing | None) -> int:
    return int(os.environ.get("RANK", "0")) if sizing is not None and sizing.of_processes else 0


class Child:
    """The hooks that keep one item, count its iterations and write its reports."""

    def __init__(self, task: Task, rank: int) -> None:
        """
        Args:
            task: What is to be done.
            rank: Which of the processes this is.
        """
        self._task = task
        self._origin = Origin()
        self._reports = supervisor.reports_of(Path(task.folder), rank)
        self.board = supervisor.Board(supervisor.board_of(Path(task.folder)), rank)

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
        items[:] = [item for item in items if self._is_meant(item)][:1]
        for item in items:
            if PLAN in item.stash and self._task.sizing is not None:
                # Run once, for its peaks.
                del item.stash[PLAN]
            elif PLAN in item.stash:
                item.stash[PLAN] = replace(item.stash[PLAN], test=self._task.test, process=config.stash[PROCESS])
        if not items:
            self.write("missing", self._task.test)
        return result

    def _is_meant(self, item: pytest.Item) -> bool:
        # A file outside of the root folder has no name in an id when it is asked for by itself, and only this one was.
        return item.nodeid == self._task.test or (
            item.nodeid.startswith("::") and item.nodeid[1:] == self._task.test[self._task.test.find("::") + 1 :]
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.board.iteration += 1

    # After those who still change the report: a test with failed subtests is made to fail as it is shown.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not getattr(report, "leakcheck_silent", False):
            hook = self._config.hook
            self.write("report", hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write("not collected", report.longreprtext)

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
            self.write(
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
        self.write("done", None)
        # Of several ranks none knows when all have finished: their launcher ends then.
        if self._task.sizing is None or self._task.sizing["engine"] not in ("process", "gloo"):
            self.board.finish()

    def write(self, kind: str, value: Any) -> None:
        """Send a pair to the near side."""
        self._origin.leave_elsewhere()
        # Opened each time: a descriptor that is kept might be closed by the test, and its number be another file by then.
        with room_for_descriptors(), self._reports.open("a", encoding="utf-8") as file:
            file.write(supervisor.to_line([kind, value]) + "\n")


def _describe_allocator() -> str:
    """What the start has come to: tunables are glibc's alone, and the user's own win."""
    return "tcache off, mmap threshold 128 KiB" if is_quiet() else "the allocator could not be made quiet"
