"""Run one item in a child process, repeatedly or once under a meter, and send its reports.

`engines` starts the process; ``-p`` loads this module in it. The process parses the session's
command line again, so it has the same plugins, conftests, configuration and options. Then this
module overrides the options that only the session may use. A server does the same, and forks such a
process for each item of a file that it has collected.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.config import create_terminal_writer

from pytest_leakcheck.attribution.call_paths import is_harness, is_own
from pytest_leakcheck.model.decoding import decode
from pytest_leakcheck.model.recording import Recording, Sizing
from pytest_leakcheck.plugin import keys, silent_tmpdir
from pytest_leakcheck.plugin.inert import Leakcheck, has_process_group, join_process_group
from pytest_leakcheck.plugin.isolation.messages import Messages, RecordedWarning, Task, to_line
from pytest_leakcheck.plugin.other_plugins import prepare_given_folder, prepare_process
from pytest_leakcheck.plugin.undisturbed import AppendedFile, undisturbed_writing
from pytest_leakcheck.probes.native_heap import is_quiet, other_allocator
from pytest_leakcheck.probes.own_folder import use_folder
from pytest_leakcheck.runner.bounded_caches import BoundedOwners
from pytest_leakcheck.runner.environment import ForkGuard, describe_environment
from pytest_leakcheck.runner.peak_meter import Meter
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.fork_server import Server, leave
from pytest_leakcheck.runner.processes.ray_ranks import APART_VARIABLE, NODE_VARIABLE
from pytest_leakcheck.runner.processes.supervisor import Board

# The new values of options, by the name under which pytest or a plugin stores the option. An option
# that does not exist is not added.
_OPTION_OVERRIDES: Final[dict[str, Any]] = {
    # Selection and order of tests, and the list of the slowest ones.
    **dict.fromkeys(("keyword", "markexpr"), ""),
    **dict.fromkeys(
        ("pyargs", "lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "stepwise_reset"),
        False,
    ),
    **dict.fromkeys(("deselect", "durations"), None),
    # Debuggers, workers, stopping after failures.
    **dict.fromkeys(("usepdb", "trace", "looponfail", "distload"), False),
    **dict.fromkeys(("numprocesses", "maxprocesses"), None),
    "maxfail": 0,
    "dist": "no",
    "tx": [],
    # Reports that the session itself writes, and the cache and the log file that it maintains.
    **dict.fromkeys(
        ("xmlpath", "leakcheck_json", "leakcheck_html", "report_log", "htmlpath", "pastebin"), None
    ),
    **dict.fromkeys(("json_report", "cacheclear", "clean_alluredir"), False),
    "log_file": os.devnull,
}
# `number` is the rank of a thread that `_wrap_in_threads` started.
_THREAD_RANK: Final = threading.local()
_TASK: Final[pytest.StashKey[Task]] = pytest.StashKey()
_SERVER: Final[pytest.StashKey[Server]] = pytest.StashKey()
_OF_SERVER: Final[pytest.StashKey[contextlib.ExitStack]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the file with the task of this process."""
    parser.addoption(
        "--leakcheck-task", metavar="PATH", help="Internal: the task of an isolated test."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Read the task, before a conftest is loaded."""
    task = _read_task(early_config.known_args_namespace.leakcheck_task)
    early_config.stash[_TASK] = task
    if task.server:
        early_config.stash[_SERVER] = Server(task.server, task.parent, Path(task.folder, "said"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, object, object]:
    """Override options and register the hooks, before pytest is configured."""
    task = config.stash[_TASK]
    for name, value in {
        **_OPTION_OVERRIDES,
        "color": task.color,
        "basetemp": task.basetemp,
    }.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.args = [task.file]
    config.stash[keys.ARGUMENTS] = task.arguments
    not_forked = {"not forked": task.not_forked} if task.not_forked else {}
    config.stash[keys.PROCESS] = {"isolated": _describe_allocator(), **not_forked}
    if task.worker is not None:
        config.workerinput, config.workeroutput = task.worker, {}  # type: ignore[attr-defined]
    # These plugins would overwrite the session's cache of the last run.
    for name in ("lfplugin", "nfplugin", "stepwiseplugin"):
        config.pluginmanager.set_blocked(name)
    # It would serve the workers, or be served; only the session runs a test that has failed again.
    if (rerunfailures := config.pluginmanager.getplugin("rerunfailures")) is not None:
        rerunfailures.HAS_PYTEST_HANDLECRASHITEM = False
    if task.sizing is None:
        prepare_given_folder(config, Path(task.folder))
    if _SERVER in config.stash:
        silent_tmpdir.move(config, Path(task.folder), forks=True)
        config.pluginmanager.register(Forks(config), "leakcheck-forks")
    else:
        _begin(config, task)
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have the terminal reporter write nowhere; it stays registered for plugins that look it up."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open until the process ends
        terminal._tw = create_terminal_writer(config, nowhere)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Skip the summary, which is not shown: Hypothesis's plugin would import the library for it."""
    session.config.hook.pytest_terminal_summary = lambda **_: []  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_internalerror(excrepr: object) -> None:
    """Write an error of pytest to standard error, which the session shows."""
    if sys.__stderr__ is not None:
        sys.__stderr__.write(f"{excrepr}\n")


def _read_task(path: str) -> Task:
    return decode(Task, json.loads(Path(path).read_text(encoding="utf-8")))


def _begin(config: pytest.Config, task: Task) -> Child:
    """Bind this process to the session, and register the hooks that run the item."""
    sizing = task.sizing
    of_processes = sizing is not None and sizing.of_processes
    if _SERVER not in config.stash:
        supervisor.die_with(os.getppid() if of_processes else task.parent)
    rank = int(os.environ.get("RANK", "0")) if of_processes else 0
    # SIGTERM ends a process that hangs. A forked child that the test terminates writes no stack in
    # its parent's name.
    stack = supervisor.file_of(Path(task.folder), "stack", rank).open("w")
    faulthandler.register(signal.SIGTERM, stack, all_threads=True, chain=True)
    os.register_at_fork(after_in_child=partial(faulthandler.unregister, signal.SIGTERM))
    if of_processes and task.basetemp is not None:
        # Each rank needs its own, because pytest empties that folder before using it.
        config.option.basetemp = f"{task.basetemp}-{rank}"
    child = Child(config, task, rank)
    config.pluginmanager.register(child, "leakcheck-child")
    if sizing is not None:
        config.stash[keys.SIZE] = sizing.size
        config.pluginmanager.register(SizedProtocol(sizing, child, rank), "leakcheck-sized")
    return child


class Forks:
    """The hooks of a server: it forks a process per file, which forks a process per test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._server = config, config.stash[_SERVER]
        self._why_not = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        request = self._server.serve(self._find_obstacle(), hand_over=True)
        if request is None:
            pytest.exit("the session has ended", returncode=0)
        self._config.args = [request["file"]]
        return (yield)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._why_not = "the file cannot be collected there"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        result = yield
        # The first search of a process takes longest; each forked one knows what it has found.
        BoundedOwners().keep()
        request = self._server.serve(self._find_obstacle(), hand_over=False)
        if request is None:
            leave(0)
        else:
            self._begin(_read_task(request["start"])).choose(items)
        return result

    def _find_obstacle(self) -> str:
        """Return why this process must not be forked; empty if it may be."""
        if self._why_not:
            return self._why_not
        coverage: Any = sys.modules.get("coverage")
        if coverage is not None and coverage.Coverage.current() is not None:
            return "coverage is measured"
        for name in ("pytest_sessionfinish", "pytest_unconfigure"):
            for hook in getattr(self._config.hook, name).get_hookimpls():
                file = getattr(getattr(hook.function, "__code__", None), "co_filename", "")
                if file and is_own(file) and not is_harness(file):
                    # It would end what all of them share.
                    return f"{Path(file).name} has the hook {name}"
        return self._server.find_obstacle()

    def _begin(self, task: Task) -> Child:
        """Take what differs from one test to the next; pytest is configured already."""
        config, folder = self._config, Path(task.folder)
        # It ends what was begun before the fork, which the server does. Unreferenced, its
        # generators would end that too.
        config.stash[_OF_SERVER] = config._cleanup_stack.pop_all()
        if task.basetemp is not None:
            config.option.basetemp = task.basetemp
            config._tmp_path_factory = pytest.TempPathFactory.from_config(config, _ispytest=True)  # type: ignore[attr-defined]
        use_folder(folder)
        silent_tmpdir.move(config, folder, forks=False)
        prepare_process(config)
        return _begin(config, task)


class Child:
    """The hooks that select one item, count its iterations and send its reports."""

    def __init__(self, config: pytest.Config, task: Task, rank: int) -> None:
        """Open the board, shared memory that shows the parent process the progress.

        `rank` is 0 without ranks.
        """
        self._config, self._task = config, task
        self.folder, self.reports = task.folder, task.reports
        self._fork_guard = ForkGuard()
        self._reports = AppendedFile(supervisor.file_of(Path(task.folder), "messages", rank))
        self._reports.begin()
        self.board = Board(supervisor.file_of(Path(task.folder), "board"), rank)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        result = yield
        self.choose(items)
        return result

    def choose(self, items: list[pytest.Item]) -> None:
        """Leave the item of the task."""
        items[:] = [item for item in items if self._is_requested(item)][:1]
        for item in items:
            plan = item.stash.get(keys.PLAN, None)
            if plan is not None and self._task.sizing is not None:
                # Without a plan, the item is not repeated. It runs once, so that its peaks can be
                # measured.
                del item.stash[keys.PLAN]
            elif plan is not None:
                item.stash[keys.PLAN] = replace(
                    plan, test=self._task.test, process=item.config.stash[keys.PROCESS]
                )
        if not items:
            self.write(Messages(not_found=1))

    def _is_requested(self, item: pytest.Item) -> bool:
        # Here, only one file is collected. If this file is outside of the root folder, its node ids
        # start with "::".
        outside = (
            item.nodeid.startswith("::") and item.nodeid[2:] == self._task.test.partition("::")[2]
        )
        return outside or item.nodeid == self._task.test

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.board.iteration += 1

    # After hooks that change the report: pytest fails a test with failed subtests only when it
    # shows the report.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialized = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        self.write(Messages(reports=(serialized,)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(Messages(not_collected=report.longreprtext))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        # The session itself shows the warnings of collection and configuration.
        if when == "runtest":
            name = warning_message.category.__module__, warning_message.category.__qualname__
            text, file, line = (
                str(warning_message.message),
                warning_message.filename,
                warning_message.lineno,
            )
            self.write(
                Messages(warnings=(RecordedWarning(text, name, file, line, nodeid, location),))
            )

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        self.write(Messages(done=1))
        # A rank does not know when all other ranks have finished. The end of their launcher shows
        # that they have.
        if self._task.sizing is None or not self._task.sizing.of_processes:
            self.board.finish()

    def write(self, messages: Messages) -> None:
        """Send messages to the parent process. If the test forked this process, exit instead.

        What cannot be written, for example because the disk is full, is written with the next call;
        until then, the parent process sees the reason on the board.
        """
        self._fork_guard.exit_if_forked()
        with undisturbed_writing():
            try:
                self._reports.write(to_line(messages))
            except OSError as error:
                self.board.set_unsent(error.errno or errno.EIO)
            else:
                self.board.set_unsent(0)


def _describe_allocator() -> str:
    """Describe whether glibc's tunables, set by the parent, count a freed block as free at once."""
    if allocator := other_allocator():
        return f"{allocator}, counted by its own statistics"
    return (
        "tcache off, mmap threshold 128 KiB"
        if is_quiet()
        else "the allocator settings have no effect"
    )


class SizedProtocol:
    """The hooks in a process that was started to run a test once for its peaks."""

    def __init__(self, sizing: Sizing, child: Child, rank: int) -> None:
        self._sizing, self._board, self._write = sizing, child.board, child.write
        self._folder, self._rank = child.folder, rank
        node = os.environ.get(NODE_VARIABLE, "")
        self._node = {"node": node} if node else {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        if APART_VARIABLE in os.environ or not has_process_group(self._sizing.engine):
            return (yield)
        with join_process_group(self._folder, self._rank, self._sizing.ranks):
            return (yield)

    # The innermost wrapper, so that the work of other plugins is not measured.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        meter = item.config.stash[keys.METER] = Meter(self._sizing.resources, self._sizing.naming)
        if self._sizing.engine == "thread" and isinstance(item, pytest.Function):
            item.obj = _wrap_in_threads(item.obj, self._sizing.size)
        self._board.iteration += 1
        fork_guard = ForkGuard()
        meter.begin()
        try:
            result = yield
        finally:
            fork_guard.exit_if_forked(int(sys.exc_info()[0] is not None))
            series, peaks, phases = meter.end()
            self._board.iteration += 1
            del item.config.stash[keys.METER]
        recording = Recording(
            item.nodeid,
            series,
            stopped="iterations",
            unavailable=meter.unavailable,
            environment=describe_environment(meter.device) | self._node,
            peaks=peaks,
            exact=meter.exact,
            at_calls=0 if meter.exact else meter.at_calls,
            phases=phases,
        )
        self._write(Messages(recordings=(recording,)))
        for culprit in meter.culprits():
            self._write(Messages(culprits=(culprit,)))
        return result


class Sized(Leakcheck):
    """The fixture in a run for the peaks: it measures gauges and checkpoints.

    Loops run `n` steps, by default one.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @property
    def rank(self) -> int:
        return int(getattr(_THREAD_RANK, "number", os.environ.get("RANK", "0")))

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:  # noqa: ARG002 - others use it
        meter = self._config.stash.get(keys.METER, None)
        if meter is None:
            raise RuntimeError(
                f"leakcheck.gauge({name!r}) was called outside of the test: call it in the test's body"
            )
        meter.gauge(name, read, getattr(_THREAD_RANK, "number", None))

    def checkpoint(self, label: str) -> None:
        if keys.METER in self._config.stash:
            self._config.stash[keys.METER].checkpoint(label)


def _wrap_in_threads(body: Callable[..., object], count: int) -> Callable[..., None]:
    """Return a function that runs the body in `count` threads, and raises the first error."""

    def run(**arguments: object) -> None:
        failures: list[tuple[int, BaseException]] = []

        def rank(number: int) -> None:
            _THREAD_RANK.number = number
            try:
                body(**arguments)
            except BaseException as error:  # noqa: BLE001 - it is raised below, in the test's own thread
                failures.append((number, error))

        started = range(count)
        threads = [
            threading.Thread(target=rank, args=(index,), name=f"rank-{index}", daemon=True)
            for index in started
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, error in failures[:1]:
            error.add_note(f"in rank {number} of {count} threads")
            raise error

    return run
