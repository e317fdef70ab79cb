"""Threads that come and go: their stacks and the arenas of malloc are mapped, and are no leak."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from cases import clib
from cases.case import Case, drain, leak

LATE: deque[threading.Thread] = deque()
ADDRESSES = clib.addresses()
SIZE = 16 * mmap.PAGESIZE
LOCAL = threading.local()
CALLS = itertools.count()
TEAM_SIZES = itertools.cycle((1, 2, 4, 8, 6, 3, 5, 7))
STACK_MIBS = itertools.cycle((8, 16, 4, 32, 12, 24, 1, 20))


def allocate() -> None:
    """Take blocks from malloc, which gives each thread an arena."""
    _blocks = [bytes(5000) for _ in range(40)]


def allocate_again(seconds: float) -> None:
    allocate()
    time.sleep(seconds)
    allocate()


def run_at_once(count: int, work: Callable[[], object]) -> None:
    """Run work in so many threads, all of them at once."""
    barrier = threading.Barrier(count)

    def run() -> None:
        barrier.wait()
        work()
        barrier.wait()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def start_late() -> None:
    """Start a thread that ends a few calls later. Nine run at most, each joined."""
    thread = threading.Thread(target=allocate_again, args=(0.005,))
    thread.start()
    LATE.append(thread)
    if len(LATE) > 8:
        LATE.popleft().join()


def more_and_more_threads() -> None:
    """Up to 16, one more in every fourth call."""
    run_at_once(min(16, 1 + next(CALLS) // 4), allocate)


def keep_in_thread_local() -> None:
    LOCAL.blocks = [bytes(10_000) for _ in range(50)]


def team_of_another_size() -> None:
    size = next(TEAM_SIZES)
    with ThreadPoolExecutor(size) as team:
        list(team.map(allocate_again, [0.001] * size))


def stack_of(mebibytes: int) -> None:
    before = threading.stack_size(mebibytes << 20)
    try:
        run_at_once(4, allocate)
    finally:
        threading.stack_size(before)


def stack_of_another_size() -> None:
    stack_of(next(STACK_MIBS))


def multiply() -> None:
    square = np.ones((100, 100))
    _product = square @ square


def pages_kept_beside_threads() -> None:
    start_late()
    ADDRESSES.append(clib.map_pages(SIZE))


def pages_unmapped_beside_threads() -> None:
    start_late()
    clib.munmap(clib.map_pages(SIZE), SIZE)


def end_all() -> None:
    drain(LATE, threading.Thread.join)()
    drain(ADDRESSES, lambda address: clib.munmap(address, SIZE))()


CASES = (
    Case("more_and_more_threads", clean=more_and_more_threads, settles_after=64, timed=True),
    Case("blocks_in_thread_local", clean=partial(run_at_once, 4, keep_in_thread_local), timed=True),
    Case("team_of_another_size", clean=team_of_another_size, timed=True),
    Case("large_stacks", clean=partial(stack_of, 8), timed=True),
    Case("stack_of_another_size", clean=stack_of_another_size, timed=True),
    Case("numpy_in_threads", clean=partial(run_at_once, 4, multiply), timed=True),
    leak("pages_kept_beside_threads", "mmap", pages_kept_beside_threads, pages_unmapped_beside_threads, end_all,
         line=("_mmap(None", "clib.map_pages(SIZE)"), doubt="threads end while the counters are read", timed=True),
)  # fmt: skip
