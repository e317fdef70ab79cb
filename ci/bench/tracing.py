"""Measure how much slower an iteration becomes while the plugin traces it to find what makes a counter grow.

Untraced iterations run between the traced ones, in one process. The script compares the medians of both, because their
ratio depends little on the load of the machine. It lists the first traced iteration separately, because in that one the
tracer determines how much detail it can afford.

Exit 1 if an iteration of at least a millisecond takes more than ten times as long when it is traced.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pytest_leakcheck.attribution.tracing.allocations import DEPTHS, Allocations
from pytest_leakcheck.attribution.tracing.backends import Tracer
from pytest_leakcheck.attribution.tracing.call_tree import CallTree
from pytest_leakcheck.attribution.tracing.created_handles import Arrivals
from pytest_leakcheck.attribution.tracing.tracer import Listener
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.native_heap import Heap

MOST = 10.0
FROM = 0.001
# Number of tracers per workload and counter. With a single tracer, the time of its first iteration would depend on the
# load of the machine.
_TRACER_COUNT = 5


def recursion() -> None:
    """Make about 10,000 recursive calls per millisecond, with a little arithmetic in each."""

    def fib(n: int) -> int:
        total = n * 3 % 7 + n * 5 % 11 + n * 7 % 13 - n * n % 17
        return total if n < 2 else fib(n - 1) + fib(n - 2)

    fib(19)


def bare_recursion() -> None:
    """Make recursive calls with no further work."""

    def fib(n: int) -> int:
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    fib(21)


def calls_of_c() -> None:
    """Call functions implemented in C."""
    text = "some words and a few more"
    for _ in range(16000):
        len(text)
        text.startswith("some")


def calls_in_depth() -> None:
    """Call functions implemented in C, 20 frames deep."""

    def deeper(n: int) -> None:
        if n:
            deeper(n - 1)
        else:
            calls_of_c()

    deeper(20)


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


def parsing() -> None:
    """Parse an expression with a generator and recursion."""
    text = "alpha = 12 + (beta * 3) - gamma / 4 ; " * 500

    def words() -> Iterator[str]:
        whole = ""
        for letter in text:
            if letter.isalnum():
                whole += letter
                continue
            if whole:
                yield whole
            whole = ""
            if letter.strip():
                yield letter

    def parse(stream: Iterator[str]) -> list[Any]:
        found: list[Any] = []
        for word in stream:
            if word == ")":
                break
            found.append(parse(stream) if word == "(" else word)
        return found

    parse(words())


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


def pictures() -> None:
    """Convert video frames with PyAV; `main` skips this workload if PyAV is not installed."""
    import av

    frame = av.VideoFrame(320, 240, "rgb24")
    for _ in range(20):
        frame.reformat(160, 120, "yuv420p")


WORKLOADS: tuple[Callable[[], None], ...] = (
    as_json,
    arrays,
    database,
    files,
    parsing,
    pictures,
    pool,
    calls_of_c,
    calls_in_depth,
    recursion,
    bare_recursion,
    objects_in_depth,
)


def timed(run: Callable[[], None]) -> float:
    """Return the duration of a call in seconds."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def ratio(workload: Callable[[], None], make: Callable[[], Listener], rounds: int) -> tuple[float, float, float, bool]:
    """Compare untraced and traced iterations.

    Returns:
        The least seconds of an untraced iteration; the median times of the first and of the later traced iterations, as
        multiples of the untraced median; whether the tracer left out events to limit its cost.
    """
    # The minimum, so that a machine that is busy for a moment does not make the workload look slow.
    plain = min(timed(workload) for _ in range(2 * rounds))
    firsts, pairs = [], []
    coarse = False
    for _ in range(_TRACER_COUNT):
        tracer = Tracer(make(), plain_seconds=plain)
        traced = partial(trace, tracer, workload)
        try:
            firsts.append((timed(workload), timed(traced)))
            pairs += [(timed(workload), timed(traced)) for _ in range(rounds)]
        finally:
            tracer.close()
        assert not tracer.interrupted, tracer.interrupted
        coarse = coarse or tracer.coarse
    first = median(other for _one, other in firsts) / median(one for one, _other in firsts)
    return plain, first, median(other for _one, other in pairs) / median(one for one, _other in pairs), coarse


def ratio_of_allocations(workload: Callable[[], None], rounds: int) -> tuple[float, float, float, bool]:
    """Do the same as `ratio` for `tracemalloc`; the last value is whether it recorded fewer frames to save time."""
    plain = min(timed(workload) for _ in range(2 * rounds))
    firsts, others = [], []
    coarse = False
    for _ in range(_TRACER_COUNT):
        before = timed(workload)
        allocations = Allocations(plain)
        allocations.open()
        try:
            took = [timed(workload)]
            allocations.iteration_done(took[0])
            for _ in range(rounds):
                took.append(timed(workload))
                allocations.iteration_done(took[-1])
            coarse = coarse or tracemalloc.get_traceback_limit() < max(DEPTHS)
        finally:
            allocations.close()
        firsts.append((before, took[0]))
        others += [(before, one) for one in took[1:]]
    first = median(other for _one, other in firsts) / median(one for one, _other in firsts)
    return plain, first, median(other for _one, other in others) / median(one for one, _other in others), coarse


def trace(tracer: Tracer, workload: Callable[[], None]) -> None:
    """Run one traced iteration."""
    tracer.arm()
    try:
        workload()
    finally:
        tracer.disarm()


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

    listeners: dict[str, Callable[[], Listener]] = {
        "tree, fd": lambda: CallTree(fds),
        "tree, heap": lambda: CallTree(heap.read),
        "arrivals, fd": lambda: Arrivals(fds, open_targets),
    }
    print(f"Python {sys.version.split()[0]}, {Path(__file__).name}, {arguments.rounds} rounds\n")
    print("| workload | counter | plain, ms | first | traced | |")
    print("|---|---|---:|---:|---:|---|")
    slow = 0
    for workload in WORKLOADS:
        if arguments.only not in workload.__name__:
            continue
        try:
            workload()
        except ImportError as error:
            print(f"| {workload.__name__} | {error} | | | | |")
            continue
        ways = {name: partial(ratio, workload, make) for name, make in listeners.items()}
        ways["allocations"] = partial(ratio_of_allocations, workload)
        for name, measure in ways.items():
            plain, first, traced, coarse = measure(arguments.rounds)
            failed = plain >= FROM and max(first, traced) > MOST
            slow += failed
            notes = " ".join(["coarse"] * coarse + ["TOO SLOW"] * failed)
            print(
                f"| {workload.__name__} | {name} | {1000 * plain:.2f} | × {first:.1f} | × {traced:.1f} | {notes} |",
                flush=True,
            )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
