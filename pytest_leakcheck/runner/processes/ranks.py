"""Starts the ranks of a world, one process each, and says which of them failed and how. Runs in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.end_tree import end_tree

_POLL: Final = 0.02
# Once a rank has failed, the others get so long to say something of their own, in seconds.
_GRACE: Final = 2.0
_TERMINATE: Final = 2.0


def launch(engine: str, ranks: int, command: Sequence[str], folder: str, parent: int) -> int:
    """Run a command in each rank, with ``RANK`` and ``WORLD_SIZE`` in its environment, and wait for all.

    Args:
        engine: ``process`` starts them itself; ``gloo`` leaves that to torch's own launcher.
        ranks: How many.
        command: Program and arguments.
        folder: Where the launcher's logs go, and ``failures``: a line of JSON per rank that failed, its number and exit status.
        parent: The process to die with; 0 for none.

    Returns:
        0, or 1 where a rank failed.
    """
    supervisor.die_with(parent)
    # What ends this process ends the ranks as well; they are given the time to say where they are. Not SIG_IGN, which they
    # would inherit.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    failed = _by_torch(ranks, command, folder) if engine == "gloo" else _by_ourselves(ranks, command)
    lines = [supervisor.to_line([rank, status]) + "\n" for rank, status in failed.items()]
    Path(folder, "failures").write_text("".join(lines), encoding="utf-8")
    return 1 if failed else 0


def _by_ourselves(ranks: int, command: Sequence[str]) -> dict[int, int]:
    numbers = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
    running = [
        subprocess.Popen(command, env={**os.environ, **own}, stdin=subprocess.DEVNULL)  # noqa: S603 - our own command
        for own in numbers
    ]
    failed: dict[int, int] = {}
    deadline = 0.0
    # All of them are asked each time: one that is not has no status.
    while None in [process.poll() for process in running]:
        failed |= {
            rank: process.returncode
            for rank, process in enumerate(running)
            if process.returncode and rank not in failed
        }
        deadline = deadline or (time.monotonic() + _GRACE if failed else 0.0)
        if deadline and time.monotonic() > deadline:
            end_tree(*running, grace=_TERMINATE, group=False)
            return failed
        time.sleep(_POLL)
    return failed | {rank: process.returncode for rank, process in enumerate(running) if process.returncode}


def _by_torch(ranks: int, command: Sequence[str], folder: str) -> dict[int, int]:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=f"leakcheck-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
        # Left to itself it makes a temporary folder for them, and leaves it behind.
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except SignalException:
        return {}
    except ChildFailedError as error:
        return {int(rank): int(failure.exitcode) for rank, failure in error.failures.items()}
    return {}
