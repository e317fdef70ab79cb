"""Child processes that are started and never ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from array import array
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.pool import Pool
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

from cases.case import Case, drain, in_turn, kept, leak

FORK: ForkContext = multiprocessing.get_context("fork")
SPAWN: SpawnContext = multiprocessing.get_context("spawn")
# Long for a test, and short for what a killed run leaves behind.
LIFE = "300"
CHILDREN: list[subprocess.Popen[bytes]] = []
FORKED: array[int] = array("i")
WORKERS: list[BaseProcess] = []
POOLS: list[Pool] = []


class Helper:
    """A program that answers each line, and keeps a megabyte for it or releases that."""

    child: subprocess.Popen[bytes]
    PROGRAM = """if True:
        import sys
        kept = []
        for line in sys.stdin.buffer:
            kept.append(bytearray(b"1") * (1 << 20))
            if line != b"keep\\n":
                kept.pop()
            print(flush=True)
    """

    @classmethod
    def start(cls) -> None:
        cls.child = subprocess.Popen([sys.executable, "-c", cls.PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        cls.ask("release")

    @classmethod
    def ask(cls, what: str) -> None:
        assert cls.child.stdin is not None
        assert cls.child.stdout is not None
        cls.child.stdin.write(f"{what}\n".encode())
        cls.child.stdin.flush()
        cls.child.stdout.readline()

    @classmethod
    def stop(cls) -> None:
        cls.child.communicate()


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


def forked_worker() -> None:
    worker = FORK.Process(target=time.sleep, args=(int(LIFE),), daemon=True)
    worker.start()
    WORKERS.append(worker)


def spawned_worker() -> None:
    worker = SPAWN.Process(target=time.sleep, args=(int(LIFE),), daemon=True)
    worker.start()
    WORKERS.append(worker)


def pool_not_closed() -> None:
    pool = FORK.Pool(1)
    pool.apply(abs, (-1,))
    POOLS.append(pool)


# A forked child gets a copy of each of these. Nothing was opened for it.
HELD: list[IO[bytes]] = []


def hold_files(count: int) -> None:
    HELD.extend(Path("/dev/null").open("rb") for _ in range(count))


def release_files() -> None:
    drain(HELD, IO.close)()


def end_all_forked() -> None:
    drain(FORKED, end_forked)()
    release_files()


def workers_forked_again() -> None:
    drain(FORKED, end_forked)()
    FORKED.extend(fork_a_child() for _ in range(2))


def file_kept_beside_workers() -> None:
    workers_forked_again()
    HELD.append(Path("/dev/null").open("rb"))


def file_closed_beside_workers() -> None:
    workers_forked_again()
    Path("/dev/null").open("rb").close()


class Opener:
    """A worker that opens a file for each request: at "keep" it leaves the file open."""

    requests: Connection
    worker: BaseProcess

    @classmethod
    def start(cls) -> None:
        hold_files(20)
        cls.requests, its_end = FORK.Pipe()
        cls.worker = FORK.Process(target=cls.serve, args=(its_end,), daemon=True)
        cls.worker.start()

    @staticmethod
    def serve(requests: Connection) -> None:
        kept = []
        while request := requests.recv():
            file = Path("/dev/null").open("rb")
            if request == "keep":
                kept.append(file)
            else:
                file.close()
            requests.send(len(kept))

    @classmethod
    def ask(cls, request: str) -> None:
        cls.requests.send(request)
        cls.requests.recv()

    @classmethod
    def stop(cls) -> None:
        end_worker(cls.worker)
        cls.requests.close()
        release_files()


end_children = drain(CHILDREN, end_child)
end_workers = drain(WORKERS, end_worker)

CASES = (
    kept("child_left_running", "process", child_left_running, end_children,
         line="subprocess.Popen([", owner=".CHILDREN"),
    leak("filter_waits_for_input", "process", filter_waits_for_input, filter_fed_to_the_end, end_children,
         line="subprocess.Popen([", owner=".CHILDREN"),
    kept("fork_left", "process", fork_left, drain(FORKED, end_forked), line="os.fork()", owner=".FORKED"),
    kept("forked_worker", "process", forked_worker, end_workers,
         line="worker.start()", owner=".WORKERS"),
    kept("spawned_worker", "process", spawned_worker, end_workers,
         line="worker.start()", owner=".WORKERS"),
    leak("fork_left_with_files", "process", fork_left, in_turn(fork_left, drain(FORKED, end_forked)), end_all_forked,
         setup=partial(hold_files, 20), line="os.fork()", owner=".FORKED"),
    Case("workers_forked_again", clean=workers_forked_again, setup=partial(hold_files, 50), teardown=end_all_forked),
    leak("file_kept_beside_workers", "fd", file_kept_beside_workers, file_closed_beside_workers, end_all_forked,
         setup=partial(hold_files, 20), line='HELD.append(Path("/dev/null").open("rb"))', owner=".HELD"),
    leak("file_kept_by_worker", "fd", partial(Opener.ask, "keep"), partial(Opener.ask, "close"), Opener.stop,
         setup=Opener.start, line='file = Path("/dev/null").open("rb")'),
    kept("process_pool_not_closed", "process", pool_not_closed, drain(POOLS, end_pool),
         line="FORK.Pool(1)", owner=".POOLS"),
    leak("helper_keeps_memory", "rss", partial(Helper.ask, "keep"), partial(Helper.ask, "release"), Helper.stop,
         setup=Helper.start, budget="rss"),
)  # fmt: skip
