"""Child processes that are started and never ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from array import array
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess

from cases.case import Case, drain

FORK: ForkContext = multiprocessing.get_context("fork")
SPAWN: SpawnContext = multiprocessing.get_context("spawn")
# Long for a test, and short for what a killed run leaves behind.
LIFE = "300"
CHILDREN: list[subprocess.Popen[bytes]] = []
FORKED: array[int] = array("i")
WORKERS: list[BaseProcess] = []
POOLS: list[Pool] = []


def end_child(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def end_forked(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def end_worker(worker: BaseProcess) -> None:
    worker.kill()
    worker.join()
    worker.close()


def end_pool(pool: Pool) -> None:
    pool.terminate()
    pool.join()


def child_left_running() -> None:
    CHILDREN.append(subprocess.Popen(["sleep", LIFE]))


def child_killed() -> None:
    end_child(subprocess.Popen(["sleep", LIFE]))


def filter_waits_for_input() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    CHILDREN.append(child)


def filter_fed_to_the_end() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.communicate(b"all of it")


def fork_a_child() -> int:
    pid = os.fork()
    if not pid:
        # The copy of the test run must never return into it.
        signal.alarm(int(LIFE))
        while True:
            signal.pause()
    return pid


def fork_left() -> None:
    FORKED.append(fork_a_child())


def fork_ended() -> None:
    end_forked(fork_a_child())


def forked_worker() -> None:
    worker = FORK.Process(target=time.sleep, args=(int(LIFE),), daemon=True)
    worker.start()
    WORKERS.append(worker)


def forked_worker_ended() -> None:
    worker = FORK.Process(target=time.sleep, args=(int(LIFE),), daemon=True)
    worker.start()
    end_worker(worker)


def spawned_worker() -> None:
    worker = SPAWN.Process(target=time.sleep, args=(int(LIFE),), daemon=True)
    worker.start()
    WORKERS.append(worker)


def spawned_worker_ended() -> None:
    worker = SPAWN.Process(target=time.sleep, args=(int(LIFE),), daemon=True)
    worker.start()
    end_worker(worker)


def pool_not_closed() -> None:
    pool = FORK.Pool(1)
    pool.apply(abs, (-1,))
    POOLS.append(pool)


def pool_closed() -> None:
    pool = FORK.Pool(1)
    pool.apply(abs, (-1,))
    end_pool(pool)


end_children = drain(CHILDREN, end_child)
end_workers = drain(WORKERS, end_worker)

CASES = (
    Case(
        "child_left_running",
        ("process",),
        child_left_running,
        child_killed,
        teardown=end_children,
        line=("subprocess.Popen([",),
        owner=("cases.processes.CHILDREN",),
    ),
    Case(
        "filter_waits_for_input",
        ("process",),
        filter_waits_for_input,
        filter_fed_to_the_end,
        teardown=end_children,
        line=("subprocess.Popen([",),
        owner=("cases.processes.CHILDREN",),
    ),
    Case(
        "fork_left",
        ("process",),
        fork_left,
        fork_ended,
        teardown=drain(FORKED, end_forked),
        line=("os.fork()",),
        owner=("cases.processes.FORKED",),
    ),
    Case(
        "forked_worker",
        ("process",),
        forked_worker,
        forked_worker_ended,
        teardown=end_workers,
        line=("worker.start()",),
        owner=("cases.processes.WORKERS",),
    ),
    Case(
        "spawned_worker",
        ("process",),
        spawned_worker,
        spawned_worker_ended,
        teardown=end_workers,
        line=("worker.start()",),
        owner=("cases.processes.WORKERS",),
    ),
    Case(
        "process_pool_not_closed",
        ("process",),
        pool_not_closed,
        pool_closed,
        teardown=drain(POOLS, end_pool),
        line=("FORK.Pool(1)",),
        owner=("cases.processes.POOLS",),
    ),
)
