"""Run an item in one or more subprocesses and collect what they report: for `isolated_item`, `scaled_item` and `peak_budget`.

The far side (`child_session`) parses the session's command line again, so it sees the plugins and options that this one does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.model.scaling_points import Sizing
from pytest_leakcheck.plugin.isolation.messages import Answer, Task
from pytest_leakcheck.plugin.session_report import encoding_of
from pytest_leakcheck.plugin.stash import ARGUMENTS
from pytest_leakcheck.plugin.xdist import shared_folder_of
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.private_tmpdir import PREFIX, has_room, variables_for

# Imports, collection and fixtures of every scope come before the first iteration.
START_UP: Final = 60.0

# The path first, so that the child imports what this process does, and nothing from the folder that it is started in.
_PROGRAM: Final = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import json, os
with open(sys.argv[1], encoding="utf-8") as file:
    told = json.load(file)
sys.path[:], sys.argv[:] = told["path"], told["argv"]
if told["world"] and "RANK" not in os.environ:
    from pytest_leakcheck.runner.processes.ranks import launch
    sys.exit(launch(**told["world"]))
import pytest
sys.exit(pytest.main(told["arguments"]))
"""


def send(
    item: pytest.Item,
    patience: supervisor.Patience,
    sizing: Sizing | None = None,
    watch: supervisor.Watch | None = None,
) -> Answer:
    """Run an item elsewhere.

    Args:
        item: What to run.
        patience: How long it may be silent.
        sizing: At which size of an axis, and in how many processes; None repeats it as it is.
        watch: Looks at the process from outside, now and then.
    """
    if item.config.pluginmanager.hasplugin("timeout"):
        # The child has a timer of its own, which starts with the test.
        item.ihook.pytest_timeout_cancel_timer(item=item)
    ranks = sizing.ranks if sizing else 1
    shared = shared_folder_of(item.config)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=shared, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        start = supervisor.Start(
            _command(item, folder, sizing),
            cwd=item.config.invocation_params.dir,
            environment=supervisor.quiet_environment(_environment(folder)),
            show=item.config.getoption("capture") == "no",
            ranks=ranks,
        )
        ended = supervisor.run(start, folder, patience, watch)
        told = tuple(tuple(_read(supervisor.reports_of(folder, rank))) for rank in range(ranks))
        stacks = tuple(_text(supervisor.stack_of(folder, rank)) for rank in range(ranks))
        failures = dict(_read(folder / "failures"))
        return Answer(ended, told, stacks, failures)


def _command(item: pytest.Item, folder: Path, sizing: Sizing | None) -> list[str]:
    """Write what the far side is to know, and say how it is started."""
    config = item.config
    worker = getattr(config, "workerinput", None)
    # The folder of the session's ``tmp_path``, as xdist does for its workers: kept and removed with it.
    factory = getattr(config, "_tmp_path_factory", None)
    in_main_thread = threading.current_thread() is threading.main_thread()
    task = Task(
        test=_own_id(item),
        file=_relative(item.path, config.invocation_params.dir),
        folder=str(folder),
        basetemp=str(factory.mktemp("isolated") / "tmp") if factory is not None else None,
        encoding=encoding_of(config),
        color="yes" if _has_colors(config) else "no",
        # The signal that tells a child of the end of its parent is sent at the end of the thread that started it.
        parent=os.getpid() if in_main_thread else 0,
        worker=worker,
        sizing=asdict(sizing) if sizing else None,
        arguments=_arguments(config),
    )
    Path(folder, "task").write_text(supervisor.to_line(asdict(task)), encoding="utf-8")
    arguments = ["-p", "pytest_leakcheck.plugin.isolation.child_session", f"--leakcheck-task={folder / 'task'}"]
    if config.pluginmanager.hasplugin("pytest_cov"):
        arguments.append("--no-cov")
    arguments += task.arguments
    program = folder / supervisor.PROGRAM
    program.write_text(_PROGRAM, encoding="utf-8")
    command = [sys.executable, *_interpreter_flags(), str(program), str(folder / "start")]
    told = {
        "path": [str(path) for path in sys.path],
        "argv": sys.argv,
        "arguments": arguments,
        "world": {
            "engine": sizing.engine,
            "ranks": sizing.ranks,
            "command": command,
            "folder": str(folder),
            "parent": task.parent,
        }
        if sizing is not None and sizing.of_processes
        else None,
    }
    Path(folder, "start").write_text(supervisor.to_line(told), encoding="utf-8")
    return command


def _arguments(config: pytest.Config) -> tuple[str, ...]:
    """The session's; a process that was started for one test has more, which are not for another."""
    if ARGUMENTS in config.stash:
        return config.stash[ARGUMENTS]
    given = config.invocation_params
    plugins = [word for name in given.plugins or () if isinstance(name, str) for word in ("-p", name)]
    return (*plugins, *map(str, given.args))


def _own_id(item: pytest.Item) -> str:
    """The node id as a process without workers has it: ``--dist=loadgroup`` puts the names of groups behind it."""
    marks = item.iter_markers("xdist_group")
    groups = {str(mark.args[0] if mark.args else mark.kwargs.get("name", "default")) for mark in marks}
    return item.nodeid.removesuffix(f"@{'_'.join(sorted(groups))}")


def _relative(path: Path, folder: Path) -> str:
    # Where it can be: pytest takes what follows a "[" for parameters, in the name of a folder above too.
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _has_colors(config: pytest.Config) -> bool:
    return config.pluginmanager.hasplugin("terminalreporter") and config.get_terminal_writer().hasmarkup


def _interpreter_flags() -> list[str]:
    """``-W``, ``-X`` and others that this process was started with, as `multiprocessing` hands them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return kept | (variables_for(folder) if has_room(str(folder.parent)) else {})


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _read(path: Path) -> Iterator[tuple[Any, Any]]:
    """What was written there, up to a line that could not be finished."""
    for line in _text(path).splitlines():
        try:
            kind, value = supervisor.from_line(line)
        except ValueError:
            return
        yield kind, value
