"""Measure how much slower an iteration becomes while the plugin traces it to find what makes a counter grow.

Untraced iterations run before the traced ones of each tracer, in one process. The script compares the medians of their
CPU times. It lists the first traced iteration separately, because in that one the tracer determines how much detail it
can afford.

Exit 1 if a traced iteration takes more than ten times as long as an untraced one, or as 5 ms if that is longer.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from pytest_leakcheck.attribution.tracing.allocations import DEPTHS, Allocations
from pytest_leakcheck.attribution.tracing.backends import Tracer
from pytest_leakcheck.attribution.tracing.call_tree import CallTree
from pytest_leakcheck.attribution.tracing.created_handles import Arrivals
from pytest_leakcheck.attribution.tracing.tracer import Listener
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.native_heap import Heap

MOST = 10.0
FROM = 0.005
# Number of tracers per workload and counter. With a single tracer, the time of its first iteration would depend on the
# load of the machine.
_TRACER_COUNT = 5


def recursion() -> None:
    """Make about 10,000 recursive calls per millisecond, with a little arithmetic in each."""

    def fib(n: int) -> int:
        total = n * 3 % 7 + n * 5 % 11 + n * 7 % 13 - n * n % 17
        return total if n < 2 else fib(n - 1) + fib(n - 2)

    fib(19)


def calls_of_c() -> None:
    """Call functions implemented in C."""
    text = "some words and a few more"
    for _ in range(16000):
        len(text)
        text.startswith("some")


def objects_in_depth() -> None:
    """Allocate objects 60 frames deep, so that each allocation has a long call path."""

    def deeper(n: int) -> None:
        if n:
            deeper(n - 1)
        else:
            [str(number) * 9 for number in range(6000)]

    deeper(60)


def as_json() -> None:
    """Encode and decode JSON."""
    data = {f"key {n}": [n, n / 3, {"text": "x" * (n % 50)}] for n in range(800)}
    json.loads(json.dumps(data))


def database() -> None:
    """Write and read a SQLite database in memory."""
    connection = sqlite3.connect(":memory:")
    connection.execute("create table t (a integer, b text)")
    for n in range(900):
        connection.execute("insert into t values (?, ?)", (n, str(n)))
    connection.execute("select sum(a) from t where b like '%7%'").fetchall()
    connection.close()


def arrays() -> None:
    """Compute with numpy arrays, in few calls that take long."""
    import numpy as np

    data = np.arange(40_000, dtype=np.float64)
    for n in range(1, 60):
        np.sqrt(data * n).sum()


def files() -> None:
    """Open and read files."""
    for _ in range(100):
        with Path("/dev/null").open("rb") as file:
            file.read()


def pool() -> None:
    """Map a function in a pool of four threads."""
    with ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda n: sum(len(str(one)) for one in range(n)), [700] * 8))


WORKLOADS: tuple[Callable[[], None], ...] = (
    as_json,
    arrays,
    database,
    files,
    pool,
    calls_of_c,
    recursion,
    objects_in_depth,
)


def timed(run: Callable[[], None]) -> float:
    """Return the CPU seconds of a call, which the load of the machine hardly changes."""
    began = time.process_time()
    run()
    return time.process_time() - began


class Traced:
    """Iterations under a tracer of the plugin."""

    def __init__(self, make: Callable[[], Listener], plain: float) -> None:
        self._tracer = Tracer(make(), plain_seconds=plain)

    def iterate(self, workload: Callable[[], None]) -> float:
        began = time.process_time()
        self._tracer.arm()
        try:
            workload()
        finally:
            self._tracer.disarm()
        return time.process_time() - began

    def close(self) -> bool:
        """End it; return whether it left out events to limit its cost."""
        self._tracer.close()
        assert not self._tracer.interrupted, self._tracer.interrupted
        return self._tracer.throttle.coarse


class Allocating:
    """Iterations under `tracemalloc`."""

    def __init__(self, plain: float) -> None:
        self._allocations = Allocations(plain)
        self._allocations.open()

    def iterate(self, workload: Callable[[], None]) -> float:
        seconds = timed(workload)
        self._allocations.iteration_done(seconds)
        return seconds

    def close(self) -> bool:
        """End it; return whether it recorded fewer frames to save time."""
        coarse = tracemalloc.get_traceback_limit() < max(DEPTHS)
        self._allocations.close()
        return coarse


def ratio(
    workload: Callable[[], None], begin: Callable[[float], Traced | Allocating], rounds: int
) -> tuple[float, float, float, bool]:
    """Return the least seconds of an untraced iteration, and whether detail was left out to limit the cost.

    Between them, the median times of the first and of the later traced iterations, as multiples of the untraced median.
    """
    # The minimum, so that a machine that is busy for a moment does not make the workload look slow.
    plain = min(timed(workload) for _ in range(2 * rounds))
    untraced, firsts, later = [], [], []
    coarse = False
    for _ in range(_TRACER_COUNT):
        untraced += [timed(workload) for _ in range(rounds)]
        tracer = begin(plain)
        try:
            traced = [tracer.iterate(workload) for _ in range(rounds + 1)]
        finally:
            coarse |= tracer.close()
        firsts.append(traced[0])
        later += traced[1:]
    return plain, median(firsts) / median(untraced), median(later) / median(untraced), coarse


def main() -> int:
    """Print a table of all workloads; return 1 if one became too slow."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a workload's name")
    arguments = parser.parse_args()
    folder = os.open("/proc/self/fd", os.O_RDONLY)
    heap = Heap()
    heap.open()

    def fds() -> int:
        return os.fstat(folder).st_size

    ways: dict[str, Callable[[float], Traced | Allocating]] = {
        "tree, fd": partial(Traced, lambda: CallTree(fds)),
        "tree, heap": partial(Traced, lambda: CallTree(heap.read)),
        "arrivals, fd": partial(Traced, lambda: Arrivals(fds, open_targets)),
        "allocations": Allocating,
    }
    print("| workload | counter | plain, ms | first | traced | |\n|---|---|---:|---:|---:|---|")
    slow = 0
    for workload in WORKLOADS:
        if arguments.only not in workload.__name__:
            continue
        for name, begin in ways.items():
            plain, first, traced, coarse = ratio(workload, begin, arguments.rounds)
            failed = max(first, traced) * plain > MOST * max(plain, FROM)
            slow += failed
            notes = " ".join(["coarse"] * coarse + ["TOO SLOW"] * failed)
            print(
                f"| {workload.__name__} | {name} | {1000 * plain:.2f} | × {first:.1f} | × {traced:.1f} | {notes} |",
                flush=True,
            )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
