"""Start each rank of a distributed run in a process, from a separate one, and record failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.foreign_files import write_text
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.supervisor import (
    GRACE_SECONDS,
    POLL_SECONDS,
    describe_exit,
    end_tree,
)


def launch(engine: str, ranks: int, command: Sequence[str], folder: str, parent: int) -> int:
    """Run a command in each rank, or what it runs in Ray actors; return 1 if a rank failed.

    Its environment has ``RANK`` and ``WORLD_SIZE``. `folder` gets ``failures``: how each failed
    rank ended, by its number, as JSON; or ``unavailable``: why no rank could be started. This
    process ends with `parent` (a pid; 0 for none).
    """
    supervisor.die_with(parent)
    # The ranks get SIGTERM as well, and write their stacks before they end. This process must
    # outlive them. They would inherit SIG_IGN, so a handler that does nothing takes its place.
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    failed: dict[int, str] = {}
    try:
        if engine == "ray":
            from pytest_leakcheck.runner.processes.ray_ranks import run_actors

            # The program and its argument, without the interpreter, which is Ray's.
            failed = run_actors(ranks, [*command[-2:]], folder, GRACE_SECONDS)
        else:
            failed = _run_processes(ranks, command)
    except Unavailable as error:
        write_text(Path(folder, "unavailable"), str(error))
    write_text(Path(folder, "failures"), json.dumps(failed))
    if failed and engine == "ray":
        os._exit(1)
    return 1 if failed else 0


def _run_processes(ranks: int, command: Sequence[str]) -> dict[int, str]:
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    rank_variables = [
        sizes | dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(ranks)
    ]
    running = [
        subprocess.Popen(command, env={**os.environ, **own}, stdin=subprocess.DEVNULL)  # noqa: S603 - a trusted command
        for own in rank_variables
    ]
    deadline = 0.0
    while True:
        statuses = [process.poll() for process in running]
        failed = {rank: describe_exit(status) for rank, status in enumerate(statuses) if status}
        if None not in statuses:
            return failed
        # Meanwhile the other ranks may report something themselves.
        deadline = deadline or (clock.monotonic() + GRACE_SECONDS if failed else 0.0)
        if deadline and clock.monotonic() > deadline:
            end_tree(*running, grace=GRACE_SECONDS, group=False)
            return failed
        clock.sleep(POLL_SECONDS)
