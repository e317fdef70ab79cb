"""Run an item in other processes, which load `child_session`, and return what they have sent.

An engine is a class with one method, `run`, which returns an `Answer`; what follows does not depend
on the engine. `Subprocess` starts one process. Another engine overrides `run`, as `World` does, and
is entered in `WORLDS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from pytest_leakcheck.config.plan import Effort
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.recording import Sizing
from pytest_leakcheck.model.resources import RESIDENT
from pytest_leakcheck.plugin import keys
from pytest_leakcheck.plugin.isolation.messages import Answer, Task, read_failures, read_lines
from pytest_leakcheck.plugin.item_reports import plain_node_id
from pytest_leakcheck.plugin.other_plugins import SESSION_FOLDER, has_timeout, is_worker
from pytest_leakcheck.plugin.report_files import folder_of_reports
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.foreign_files import read_text
from pytest_leakcheck.probes.own_folder import temporary_folder
from pytest_leakcheck.runner.processes import fork_server, supervisor
from pytest_leakcheck.runner.processes.children_peak import ChildrenPeak
from pytest_leakcheck.runner.processes.fork_server import ForkServer, ServerLost
from pytest_leakcheck.runner.processes.private_tmpdir import has_room, variables_for
from pytest_leakcheck.runner.processes.ray_cluster import QUIET, LocalCluster, is_installed
from pytest_leakcheck.runner.processes.ray_ranks import start_up_seconds

# Seconds allowed for imports, collection and the set-up of fixtures of every scope, before the
# first iteration.
START_UP: Final = 60.0
# The name of the lock file and of the xdist group that keep xdist workers from running worlds at
# the same time, because their processes would starve each other.
WORLD_GROUP: Final = "leakcheck-worlds"

# What each rank writes besides its part of the board.
_SENT: Final[tuple[Literal["messages", "stack"], ...]] = ("messages", "stack")
# How many times as long a run may take that looks for the cause of a memory peak, since it traces
# all allocations.
_NAMING_SLOWDOWN: Final = 4.0

# It sets `sys.path` first, so that the child process imports the same modules as this process.
# A child that the test spawns imports this program too, as `__mp_main__`.
_CHILD_PROGRAM: Final = """\
if __name__ == "__main__":
    import sys
    sys.path[:] = [path for path in sys.path if path]
    import json, os
    with open(sys.argv[1], encoding="utf-8") as file:
        start = json.load(file)
    sys.path[:], sys.argv[:] = start["path"], start["argv"]
    if start["server"]:
        # The session's tests could see a child of it, and wait for it.
        server = os.fork()
        if server:
            os.write(start["server"], json.dumps({"pid": server}).encode())
            os._exit(0)
        os.setsid()
    if start["world"] and "RANK" not in os.environ:
        from pytest_leakcheck.runner.processes.ranks import launch
        sys.exit(launch(*start["world"]))
    import pytest
    status = pytest.main(start["options"] + start["arguments"])
    if start["server"]:
        from pytest_leakcheck.runner.processes.fork_server import leave
        leave(status)
    sys.exit(status)
"""
_SERVER: Final[pytest.StashKey[ForkServer]] = pytest.StashKey()
_CLUSTER: Final[pytest.StashKey[LocalCluster]] = pytest.StashKey()


class Subprocess:
    """Runs an item in a separate process; `iteration` is the current one, 0 before the first."""

    def __init__(self, item: pytest.Item, effort: Effort) -> None:
        self._item, self._effort = item, effort
        self.iteration = 0

    def run(self, sizing: Sizing | None = None) -> Answer:
        """Run the item until the process ends, or kill the process if it makes no progress.

        With `sizing`, measure the peaks in one run; None repeats the item.

        Raises:
            Unavailable: This system cannot start what the engine needs.
            OSError: The process cannot write what it found.
        """
        if why_not := supervisor.unsupported():
            raise Unavailable(why_not)
        item, children = self._item, ChildrenPeak()
        samples = sizing is not None and RESIDENT in sizing.resources and not sizing.of_processes
        line: Any = item.config.pluginmanager.getplugin("leakcheck-progress")

        def look(pid: int, board: supervisor.BoardView) -> None:
            self.iteration = board.iteration
            if samples:
                children.look(pid, board)
            if line is not None:
                line.look(str(self.iteration or "") if sizing is None else "")

        if has_timeout(item):
            # Stop the timer of this process. The child process has its own, which starts with the
            # test.
            item.ihook.pytest_timeout_cancel_timer(item=item)
        if sizing is not None:
            # A forked process shares memory with its server, so its peaks are lower.
            return self._run(sizing, look, children)
        why_not, server = self._find_server(lambda: line.look("") if line is not None else None)
        if server is not None:
            with contextlib.suppress(ServerLost):
                return self._run(sizing, look, children, server=server)
            why_not = server.why_not
        return self._run(sizing, look, children, why_not)

    def _run(
        self,
        sizing: Sizing | None,
        look: Callable[[int, supervisor.BoardView], None],
        children: ChildrenPeak,
        not_forked: str = "",
        server: ForkServer | None = None,
    ) -> Answer:
        # Not in a private folder of this process, so that the paths of sockets do not become too
        # long.
        with temporary_folder(self._item.config.stash.get(SESSION_FOLDER, None)) as folder:
            start = self._prepare(folder, sizing, not_forked)
            if server is not None:
                start = replace(start, fork=partial(server.fork, folder / "start"))
            return _read_answer(
                folder,
                supervisor.run(start, folder, look),
                sizing.ranks if sizing else 1,
                children.peak,
            )

    def _prepare(self, folder: Path, sizing: Sizing | None, not_forked: str) -> supervisor.Start:
        limit = self._effort.max_time
        return _prepare(self._item, folder, sizing, limit, not_forked=not_forked)

    def _find_server(self, waiting: Callable[[], None]) -> tuple[str, ForkServer | None]:
        """Return a server that has collected the file of the item, or why there is none."""
        if why_not := fork_server.unsupported():
            return why_not, None
        if threading.current_thread() is not threading.main_thread():
            return "the session runs in another thread", None
        item, config = self._item, self._item.config
        given = (_environment(), list(sys.path), list(sys.argv))
        server = config.stash.get(_SERVER, None)
        if server is None or server.given != given:
            if server is not None:
                server.close()

            def prepare(folder: Path, connection: int) -> supervisor.Start:
                return _prepare(item, folder, None, self._effort.max_time, server=connection)

            server = config.stash[_SERVER] = ForkServer(
                prepare, config.stash.get(SESSION_FOLDER, None), given, waiting
            )
            config.add_cleanup(server.close)
        why_not = server.collect(_relative_path(item.path, config.invocation_params.dir))
        return why_not, None if why_not else server


class World(Subprocess):
    """Runs an item in a world of ranks, one process each, which `runner.processes.ranks` starts."""

    def run(self, sizing: Sizing | None = None) -> Answer:
        """Run the item as `Subprocess` does, but only one world at a time in all xdist workers."""
        if sizing is not None and sizing.engine == "gloo" and find_spec("torch") is None:
            raise Unavailable(
                'engine="gloo" needs torch.distributed, and torch is not installed here'
            )
        config = self._item.config
        with ExitStack() as lock:
            if is_worker(config) and not supervisor.unsupported():
                import fcntl

                # The folder of a worker lies in that of the session.
                path = Path(config._tmp_path_factory.getbasetemp().parent, WORLD_GROUP)  # type: ignore[attr-defined]
                fcntl.flock(lock.enter_context(path.open("a")), fcntl.LOCK_EX)
            return super().run(sizing)


class RayWorld(World):
    """Runs an item in a world of Ray actors, which `runner.processes.ray_ranks` starts.

    This process never loads Ray.
    """

    def run(self, sizing: Sizing | None = None) -> Answer:
        """Run the item as `World` does, on the project's cluster or on one of the session."""
        if not is_installed():
            raise Unavailable(
                "engine=\"ray\" needs Ray, which is not installed here: pip install 'pytest-leakcheck[ray]', or have "
                'plain processes as ranks (engine="process")'
            )
        return super().run(sizing)

    def _prepare(self, folder: Path, sizing: Sizing | None, not_forked: str) -> supervisor.Start:
        start = super()._prepare(folder, sizing, not_forked)
        return replace(
            start,
            environment={**start.environment, **self._find_cluster()},
            start_up=start.start_up + start_up_seconds(start.ranks),
        )

    def _find_cluster(self) -> Mapping[str, str]:
        """Return the variables with which to connect to a cluster; start one if there is none."""
        ray: Any = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            return {**QUIET, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        if os.environ.get("RAY_ADDRESS", "local") not in ("", "local"):
            return QUIET
        item, config = self._item, self._item.config
        if _CLUSTER not in config.stash:
            sweeps = [
                one.stash[keys.SWEEP] for one in item.session.items if keys.SWEEP in one.stash
            ]
            largest = max(one.sizes[-1] for one in sweeps if WORLDS.get(one.engine) is RayWorld)
            line: Any = config.pluginmanager.getplugin("leakcheck-progress")
            cluster = LocalCluster(
                max(largest, os.cpu_count() or 1), lambda: line and line.look("")
            )
            config.stash[_CLUSTER] = cluster
            config.add_cleanup(cluster.close)
        return config.stash[_CLUSTER].variables


# The engines of worlds whose ranks are processes, by the name that a mark gives; all other tests
# run in one process.
WORLDS: Final[Mapping[str, type[Subprocess]]] = {
    "process": World,
    "gloo": World,
    "ray": RayWorld,
}


def _prepare(
    item: pytest.Item, folder: Path, sizing: Sizing | None, limit: float, **fields: str | int
) -> supervisor.Start:
    """Write the child's files; `limit` is the seconds of a repetition, or of a step of one run."""
    config = item.config
    task = _create_task(item, folder, sizing, **fields)
    environment = _environment()
    # In the process of a repeated test, only silent runs have a private temporary folder.
    if sizing is not None and has_room(str(folder.parent)):
        # Otherwise, the path of a socket in it would be too long.
        environment |= variables_for(folder)
    ranks = sizing.ranks if sizing else 1
    command = _write_files(config, folder, task, ranks)
    return supervisor.Start(
        command,
        config.invocation_params.dir,
        supervisor.quiet_environment(environment),
        start_up=START_UP + (0.0 if sizing else 2 * limit),
        step=limit * (_NAMING_SLOWDOWN if sizing.naming else 1) if sizing else START_UP + 2 * limit,
        show=config.getoption("capture") == "no",
        ranks=ranks,
    )


def _create_task(
    item: pytest.Item, folder: Path, sizing: Sizing | None, **fields: str | int
) -> Task:
    config = item.config
    colored = (
        config.pluginmanager.hasplugin("terminalreporter")
        and config.get_terminal_writer().hasmarkup
    )
    # The child's ``tmp_path`` lies in that of the session, as with xdist workers: pytest removes
    # both together.
    factory = getattr(config, "_tmp_path_factory", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    return Task(
        test=plain_node_id(item),
        file=_relative_path(item.path, config.invocation_params.dir),
        folder=str(folder),
        basetemp=str(factory.mktemp("fork-server" if "server" in fields else "isolated") / "tmp")
        if factory is not None
        else None,
        color="yes" if colored else "no",
        # The kernel sends the parent-death signal to the child process when the thread that started
        # it ends.
        parent=os.getpid() if in_main_thread else 0,
        worker=getattr(config, "workerinput", None),
        sizing=sizing,
        arguments=_session_arguments(config),
        reports=folder_of_reports(config, config.stash[keys.SETTINGS]),
        **fields,  # type: ignore[arg-type]
    )


def _write_files(config: pytest.Config, folder: Path, task: Task, ranks: int) -> list[str]:
    """Write what the child reads, create what it writes, and return the command that starts it."""
    program, start = folder / supervisor.PROGRAM, folder / "start"
    sent = [supervisor.file_of(folder, what, rank) for rank in range(ranks) for what in _SENT]
    # No other user reads them, whatever the umask is.
    for path in (program, start, *sent):
        path.touch(0o600, exist_ok=False)
    program.write_text(_CHILD_PROGRAM, encoding="utf-8")
    # This interpreter's own flags (``-W``, ``-X`` and others), as `multiprocessing` passes them on.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, str(program), str(start)]
    # The name of pytest-cov as a plugin depends on the way in which it was loaded.
    options = ["--no-cov"] if hasattr(config.option, "no_cov") else []
    options += [
        "-p",
        "pytest_leakcheck.plugin.isolation.child_session",
        f"--leakcheck-task={start}",
    ]
    sizing = task.sizing
    given = {
        **encode(task),
        "path": sys.path,
        "root": config.rootpath,
        "argv": sys.argv,
        "options": options,
        "server": task.server,
        # The arguments of `launch`.
        "world": (sizing.engine, ranks, command, task.folder, task.parent)
        if sizing is not None and sizing.of_processes
        else None,
    }
    start.write_text(json.dumps(given, default=str), encoding="utf-8")
    return command


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _session_arguments(config: pytest.Config) -> tuple[str, ...]:
    """Return the session's command line, without what a process for one test gets in addition."""
    if keys.ARGUMENTS in config.stash:
        return config.stash[keys.ARGUMENTS]
    given = config.invocation_params
    plugins = [
        word for name in given.plugins or () if isinstance(name, str) for word in ("-p", name)
    ]
    return (*plugins, *map(str, given.args))


def _relative_path(path: Path, folder: Path) -> str:
    # pytest reads a "[" in a path as the start of parameters. A relative path leaves out the
    # folders above, whose names may contain one.
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _read_answer(folder: Path, ended: supervisor.ProcessEnd, ranks: int, children: int) -> Answer:
    if ended.unsent:
        raise OSError(
            ended.unsent, f"the subprocess cannot write what it found: {os.strerror(ended.unsent)}"
        )
    # The launcher of the ranks writes it if it cannot start them.
    if why_not := read_text(folder / "unavailable"):
        raise Unavailable(why_not)
    with OriginalFunctions():
        messages = tuple(
            read_lines(read_text(supervisor.file_of(folder, "messages", rank)))
            for rank in range(ranks)
        )
        stacks = tuple(
            read_text(supervisor.file_of(folder, "stack", rank)) for rank in range(ranks)
        )
        # The launcher of the ranks writes it, unless it is killed.
        failures = read_failures(read_text(folder / "failures"))
    return Answer(ended, messages, stacks, failures, children)
