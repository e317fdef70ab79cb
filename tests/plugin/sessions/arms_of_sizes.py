"""Tests over an axis, whose peaks grow with it or not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from pytest_leakcheck import Leakcheck

LEAKY = True

SHARD = 1 << 20


@pytest.mark.scaling_budget("shards", [8, 16, 32, 64, 128, 256], rss="O(1)")
def test_upload(shards: int) -> None:
    parts = []
    for number in range(shards):
        part = bytearray(b"x") * SHARD
        if LEAKY:
            parts.append(part)


@pytest.mark.scaling_budget("shards", [8, 16, 32, 64], fd="<= 4", reason="the pool has four")
def test_files(shards: int, leakcheck: Leakcheck) -> None:
    opened: list[int] = []
    for number in range(shards):
        if not LEAKY and len(opened) == 4:
            os.close(opened.pop())
        opened.append(os.open(os.devnull, os.O_RDONLY))
    leakcheck.checkpoint("opened")
    for file in opened:
        os.close(file)
    leakcheck.checkpoint("closed")
    leakcheck.checkpoint("closed")


@pytest.mark.scaling_budget("jobs", [2, 4, 8], thread="2/job", waiting="<= jobs")
def test_threads(jobs: int, leakcheck: Leakcheck) -> None:
    end = threading.Event()
    waiting: list[threading.Thread] = []
    leakcheck.gauge("waiting", lambda: len(waiting))
    for number in range(jobs * (3 if LEAKY else 1)):
        thread = threading.Thread(target=end.wait)
        thread.start()
        waiting.append(thread)
    end.set()
    while waiting:
        waiting.pop().join()


def wait_until_sampled() -> None:
    # The parent process samples the children of this one between its sleeps. A fixed time to wait would not do:
    # on a busy machine, the parent process may get none of it.
    def sleeps() -> int:
        with open(f"/proc/{os.getppid()}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))

    enough = sleeps() + 10
    while sleeps() < enough:
        time.sleep(0.01)


@pytest.mark.scaling_budget("workers", [1, 2, 4], rss="<= 40 MiB")
def test_children(workers: int, pytestconfig: pytest.Config) -> None:
    work = "held = bytearray(b'x') * (24 << 20); print('full', flush=True); input()"
    started = []
    for number in range(workers if LEAKY else 1):
        child = subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()  # type: ignore[union-attr]
        started.append(child)
    if pytestconfig.getoption("leakcheck"):
        wait_until_sampled()
    for child in started:
        child.communicate(b"end")
