"""Run an item in one or more subprocesses, which load `child_session`, and collect their messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.scaling_points import Sizing
from pytest_leakcheck.plugin import timeout
from pytest_leakcheck.plugin.device_snapshot import folder_of_reports
from pytest_leakcheck.plugin.isolation.messages import Answer, Task, read_lines
from pytest_leakcheck.plugin.rerun_command import plain_node_id
from pytest_leakcheck.plugin.stash import ARGUMENTS, SETTINGS
from pytest_leakcheck.plugin.undisturbed import OriginalFunctions
from pytest_leakcheck.plugin.xdist import SESSION_FOLDER
from pytest_leakcheck.probes.folders import PRIVATE_PREFIX
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.private_tmpdir import has_room, variables_for

# Seconds allowed for imports, collection and the set-up of fixtures of every scope, before the first iteration.
START_UP: Final = 60.0

# It sets `sys.path` first, so that the child process imports the same modules as this process.
_CHILD_PROGRAM: Final = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import json, os
with open(sys.argv[1], encoding="utf-8") as file:
    start = json.load(file)
sys.path[:], sys.argv[:] = start["path"], start["argv"]
if start["world"] and "RANK" not in os.environ:
    from pytest_leakcheck.runner.processes.ranks import launch
    sys.exit(launch(**start["world"]))
import pytest
sys.exit(pytest.main(start["arguments"]))
"""


def send(
    item: pytest.Item,
    patience: supervisor.Patience,
    sizing: Sizing | None = None,
    watch: supervisor.Watch | None = None,
) -> Answer:
    """Run an item in a subprocess until the subprocess ends, or kill it if it makes no progress.

    With `sizing`, measure the peaks in one run, perhaps in several ranks; None repeats the item. This process calls
    `watch` at intervals while the subprocess runs.

    Raises:
        OSError: The subprocess cannot be started, or cannot write what it found.
    """
    if timeout.is_loaded(item):
        # Stop the timer of this process. The child process has its own, which starts with the test.
        item.ihook.pytest_timeout_cancel_timer(item=item)
    ranks = sizing.ranks if sizing else 1
    shared = item.config.stash.get(SESSION_FOLDER, None)
    with tempfile.TemporaryDirectory(prefix=PRIVATE_PREFIX, dir=shared, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        if has_room(str(folder.parent)):
            # Otherwise, the path of a socket in it would be too long.
            environment |= variables_for(folder)
        start = supervisor.Start(
            _prepare_command(item, folder, sizing),
            cwd=item.config.invocation_params.dir,
            environment=supervisor.quiet_environment(environment),
            show=item.config.getoption("capture") == "no",
            ranks=ranks,
        )
        line: Any = item.config.pluginmanager.getplugin("leakcheck-progress")
        if line is not None:
            watch = line.watch(watch, repeats=sizing is None)
        ended = supervisor.run(start, folder, patience, watch)
        with OriginalFunctions():
            messages = tuple(read_lines(_read_text(supervisor.reports_of(folder, rank))) for rank in range(ranks))
        stacks = tuple(_read_text(supervisor.stack_of(folder, rank)) for rank in range(ranks))
        # The launcher of the ranks writes it, unless it is killed.
        failures = json.loads(_read_text(folder / "failures") or "{}")
        if ended.unsent:
            raise OSError(ended.unsent, f"the subprocess cannot write what it found: {os.strerror(ended.unsent)}")
        return Answer(ended, messages, stacks, {int(rank): status for rank, status in failures.items()})


def _prepare_command(item: pytest.Item, folder: Path, sizing: Sizing | None) -> list[str]:
    """Write the files that the child process reads; return the command to start it."""
    config = item.config
    colored = config.pluginmanager.hasplugin("terminalreporter") and config.get_terminal_writer().hasmarkup
    # The child's ``tmp_path`` lies in that of the session, as with xdist workers: pytest removes both together.
    factory = getattr(config, "_tmp_path_factory", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    task = Task(
        test=plain_node_id(item),
        file=_relative_path(item.path, config.invocation_params.dir),
        folder=str(folder),
        basetemp=str(factory.mktemp("isolated") / "tmp") if factory is not None else None,
        color="yes" if colored else "no",
        # The kernel sends the parent-death signal to the child process when the thread that started it ends.
        parent=os.getpid() if in_main_thread else 0,
        worker=getattr(config, "workerinput", None),
        sizing=sizing,
        arguments=_session_arguments(config),
        reports=folder_of_reports(config, config.stash[SETTINGS]),
    )
    Path(folder, "task").write_text(json.dumps(encode(task), default=str), encoding="utf-8")
    arguments = ["-p", "pytest_leakcheck.plugin.isolation.child_session", f"--leakcheck-task={folder / 'task'}"]
    # The name of pytest-cov as a plugin depends on the way in which it was loaded.
    if hasattr(config.option, "no_cov"):
        arguments.append("--no-cov")
    arguments += task.arguments
    program = folder / supervisor.PROGRAM
    program.write_text(_CHILD_PROGRAM, encoding="utf-8")
    # This interpreter's own flags (``-W``, ``-X`` and others), as `multiprocessing` passes them on.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, str(program), str(folder / "start")]
    start_info: dict[str, Any] = {
        "path": [str(path) for path in sys.path],
        "argv": sys.argv,
        "arguments": arguments,
        "world": None,
    }
    if sizing is not None and sizing.of_processes:
        world = {"engine": sizing.engine, "ranks": sizing.ranks, "command": command}
        start_info["world"] = world | {"folder": str(folder), "parent": task.parent}
    Path(folder, "start").write_text(json.dumps(start_info), encoding="utf-8")
    return command


def _session_arguments(config: pytest.Config) -> tuple[str, ...]:
    """Return the command line of the session, without the further arguments of a process for one test."""
    if ARGUMENTS in config.stash:
        return config.stash[ARGUMENTS]
    given = config.invocation_params
    plugins = [word for name in given.plugins or () if isinstance(name, str) for word in ("-p", name)]
    return (*plugins, *map(str, given.args))


def _relative_path(path: Path, folder: Path) -> str:
    # pytest reads a "[" in a path as the start of parameters. A relative path leaves out the folders above, whose names
    # may contain one.
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
