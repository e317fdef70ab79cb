"""Each test gives a worker, which outlives the iterations, one piece of work that leaks in the marked line."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool
from typing import Any

import pytest

LEAKY = True
KEPT: list[Any] = []
libc = ctypes.CDLL(None)


def finish(file: int) -> None:
    if LEAKY:
        KEPT.append(file)
    else:
        os.close(file)


def in_python(path: str) -> None:
    file = os.open(path, os.O_RDONLY)  # of test_forked LEAK
    finish(file)


def in_c(path: str) -> None:
    file = libc.open(path.encode(), os.O_RDONLY)  # of test_opened_in_c LEAK
    finish(file)


def after_others(path: str) -> None:
    for _ in range(20):
        os.close(os.open(path, os.O_RDONLY))
    file = os.dup(0)  # of test_churn LEAK
    finish(file)


def count_up() -> None:
    for number in range(200_000):
        pass


def busy(path: str) -> None:
    count_up()
    file = os.open(path, os.O_RDONLY)  # of test_busy LEAK
    finish(file)


def work_to_do(worker: Callable[[threading.Event, threading.Event], None]) -> None:
    work, done = threading.Event(), threading.Event()
    KEPT.append((work, done))
    threading.Thread(target=worker, args=(work, done), daemon=True).start()


def opens(work: threading.Event, done: threading.Event) -> None:
    while work.wait():
        work.clear()
        finish(os.open(__file__, os.O_RDONLY))
        done.set()


def in_thread(path: str) -> None:
    if not KEPT:
        work_to_do(opens)
    work, done = KEPT[0]
    done.clear()
    work.set()
    done.wait()


def of_context(name: str) -> Any:
    @pytest.fixture(scope="module")
    def pool() -> Iterator[Pool]:
        with multiprocessing.get_context(name).Pool(1) as pool:
            yield pool

    return pool


forked, spawned, served = of_context("fork"), of_context("spawn"), of_context("forkserver")
forked_for_c, forked_for_churn, forked_for_busy, forked_for_thread = (of_context("fork") for _ in range(4))


@pytest.mark.fd_budget(0)
def test_forked(forked: Pool) -> None:
    forked.apply(in_python, (__file__,))


@pytest.mark.fd_budget(0)
def test_opened_in_c(forked_for_c: Pool) -> None:
    forked_for_c.apply(in_c, (__file__,))


@pytest.mark.fd_budget(0)
def test_churn(forked_for_churn: Pool) -> None:
    forked_for_churn.apply(after_others, (__file__,))


@pytest.mark.fd_budget(0)
def test_busy(forked_for_busy: Pool) -> None:
    forked_for_busy.apply(busy, (__file__,))


@pytest.mark.fd_budget(0)
def test_in_a_thread(forked_for_thread: Pool) -> None:
    forked_for_thread.apply(in_thread, (__file__,))


def in_spawned(path: str) -> None:
    file = os.open(path, os.O_RDONLY)  # of test_spawned LEAK
    finish(file)


def in_served(path: str) -> None:
    file = os.open(path, os.O_RDONLY)  # of test_served LEAK
    finish(file)


@pytest.mark.fd_budget(0)
def test_spawned(spawned: Pool) -> None:
    spawned.apply(in_spawned, (__file__,))


@pytest.mark.fd_budget(0)
def test_served(served: Pool) -> None:
    served.apply(in_served, (__file__,))


PROGRAM = "import sys\nfor line in sys.stdin: (open('/dev/null').fileno() if line == 'no\\n' else KEPT.append(open('/dev/null'))); print('done', flush=True)"


@pytest.fixture(scope="module")
def program() -> Iterator[Any]:
    command = [sys.executable, "-c", "KEPT = []; exec(sys.argv[1])".replace("exec", "import sys; exec"), PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        # The tracer's signal would have ended it.
        assert process.poll() is None
        process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.fd_budget(0)
def test_program(program: Any) -> None:
    program.stdin.write(b"yes\n" if LEAKY else b"no\n")
    program.stdin.flush()
    assert program.stdout.readline() == b"done\n"
