"""Measure the cost of the measuring loop per iteration; exit 1 if it retains anything or saves too little.

The script times `Repetition.iteration_done` with an empty test body: probes, garbage collection and bookkeeping. The
looks, the iterations at which the plugin decides on a verdict, are timed separately. The script measures in a bare
process, and in one that has loaded torch, pandas and numpy (those that are installed), with and without a child
process. It compares the result with the naive way in the same process: ``gc.collect()`` on an unfrozen heap, USS from
psutil, and a listing of ``/proc/self/fd``.

Times are wall times, so run the script on a machine that is otherwise idle.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import repeat
from statistics import median
from typing import Final, TypeAlias

from pytest_leakcheck.config.budget import growth_budgets
from pytest_leakcheck.config.plan import ADAPTIVE, Effort, plan_test
from pytest_leakcheck.config.settings import GROUPS
from pytest_leakcheck.judge.growth import looks
from pytest_leakcheck.model.finding import RED
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.native_heap import Heap
from pytest_leakcheck.probes.runtime_counters import Blocks
from pytest_leakcheck.runner.repetition import Repetition

HEAVY: Final = ("torch", "pandas", "numpy")
# The least number of times that the loop is cheaper than the naive way.
LIMIT: Final = 100.0
BLOCK: Final = 2_000
RETAINING: Final = 10_000
WARMUP: Final = 3
# Iterations of the runs without and with a child process. The distance between looks grows. Between the looks of the
# long run fit 17 blocks of BLOCK iterations and one stretch of RETAINING iterations; in the short run, 6 blocks.
LONG: Final = 60_000
SHORT: Final = 24_000
# Seconds for which the naive way is measured. One naive iteration takes 0.1 s in a process that has loaded the modules.
_NAIVE_SECONDS: Final = 2.0
_ADAPTIVE_RUNS: Final = 5

Retained: TypeAlias = tuple[int, int | None, int]


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of one process that has `tracked` objects of the garbage collector; microseconds per iteration.

    `loop` and `with_child` are added per iteration without and with a child process. `looks` is what all looks add to an
    adaptive run, which ends as soon as the verdict is known: after `adaptive` iterations. `retained` is the increase of gc
    objects, of bytes from malloc (None if the C library cannot report them) and of interpreter blocks in RETAINING
    iterations.
    """

    tracked: int
    loop: float
    with_child: float
    naive: float
    looks: float
    adaptive: int
    retained: Retained


def main() -> int:
    """Measure each process and print its figures; return 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description="Cost of the measuring loop per iteration.")
    parser.add_argument("--inside", nargs="*", metavar="MODULE", help="measure in this process, with these loaded")
    inside: list[str] | None = parser.parse_args().inside
    if inside is not None:
        print(json.dumps(asdict(measure_here(inside))))
        return 0
    good = True
    for modules in ([], [name for name in HEAVY if find_spec(name) is not None]):
        command = [sys.executable, __file__, "--inside", *modules]
        figures = Figures(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        _print_figures(", ".join(modules) or "bare process", figures)
        good = good and figures.naive >= LIMIT * figures.loop and not any(figures.retained)
    print("within the limits" if good else "ABOVE A LIMIT")
    return 0 if good else 1


def measure_here(modules: list[str]) -> Figures:
    """Load the modules, and measure in this process."""
    for name in modules:
        import_module(name)
    tracked = len(gc.get_objects())
    blocks, retained = _run_long(LONG)
    with _idle_child():
        with_child, _ = _run_long(SHORT)
    looks_, iterations = zip(*(_time_looks() for _ in range(_ADAPTIVE_RUNS)), strict=True)
    naive = _time_naive()
    return Figures(tracked, median(blocks), median(with_child), naive, median(looks_), iterations[-1], retained)


def _body() -> None:
    """Do nothing, so that all time is added by the loop."""


def _begin_repetition(iterations: int) -> Repetition:
    effort = Effort(iterations=iterations, warmup=WARMUP, max_time=math.inf)
    repetition = Repetition(plan_test("bench", (), effort, growth_budgets(GROUPS)))
    repetition.begin()
    for _ in range(WARMUP):
        repetition.iteration_done()
    return repetition


def _run_long(most: int) -> tuple[list[float], Retained]:
    """Run a fixed number of iterations.

    Returns:
        The times of the blocks between looks, and what was retained over RETAINING iterations between two looks.
    """
    counters = _Counters()
    repetition = _begin_repetition(most)
    blocks: list[float] = []
    retained: Retained = (0, None, 0)
    previous = 0
    for look in looks(most):
        between = look - previous - 1
        if between >= RETAINING:
            retained = _measure_retained(repetition, counters)
            between -= RETAINING
        blocks.extend(_time_block(repetition) for _ in range(between // BLOCK))
        for _ in range(between % BLOCK):
            repetition.iteration_done()
        repetition.iteration_done()
        previous = look
    result = repetition.end()
    # If the plugin had started the measurement again, looks would lie within the blocks.
    whole = all(series.iterations == most for series in result.recording.series)
    if not whole or any(verdict.outcome in RED for verdict in result.verdicts):
        raise SystemExit(f"an empty body was not clean: {result.verdicts}")
    return blocks, retained


def _time_block(repetition: Repetition) -> float:
    """Return the microseconds that the loop adds per iteration of a block."""
    done, body, now = repetition.iteration_done, _body, time.perf_counter
    began = now()
    for _ in range(BLOCK):
        body()
        done()
    measured = now()
    for _ in range(BLOCK):
        body()
    return (2 * measured - began - now()) / BLOCK * 1e6


class _Counters:
    """Readings of gc objects, heap bytes and interpreter blocks, in rows created in advance so as to retain nothing."""

    def __init__(self) -> None:
        self._rows = (array("q", (0, 0, 0)), array("q", (0, 0, 0)))
        self._blocks = Blocks()
        self._heap: Heap | None = Heap()
        try:
            self._heap.open()
        except Unavailable:
            self._heap = None

    def read(self, row: int) -> None:
        # The collection empties the interpreter's list of spare floats, whose length depends on earlier readings.
        gc.collect()
        self._rows[row][0] = len(gc.get_objects())
        self._rows[row][1] = self._heap.read() if self._heap else 0
        # The probe empties the interpreter's attribute cache before it reads, because the cache may gain a name or two.
        self._rows[row][2] = self._blocks.read()

    def gained(self) -> Retained:
        objects, heap, blocks = (after - before for before, after in zip(*self._rows, strict=True))
        return objects, heap if self._heap else None, blocks


def _measure_retained(repetition: Repetition, counters: _Counters) -> Retained:
    # Read twice, so that the first reading that counts does not differ from the last. This is not a loop, because the
    # loop's iterator and last number would be blocks too.
    counters.read(0)
    repetition.iteration_done()
    counters.read(0)
    for _ in repeat(None, RETAINING - 1):
        _body()
        repetition.iteration_done()
    counters.read(1)
    return counters.gained()


def _time_looks() -> tuple[float, int]:
    """Return the microseconds that looks add to an adaptive run, divided by its iterations, and these."""
    repetition = _begin_repetition(0)
    at = set(looks(ADAPTIVE))
    plain: list[float] = []
    seeking: list[float] = []
    wanted, n = True, 0
    while wanted:
        n += 1
        began = time.perf_counter()
        wanted = repetition.iteration_done()
        (seeking if n in at else plain).append(time.perf_counter() - began)
    repetition.end()
    return (sum(seeking) - len(seeking) * median(plain)) / n * 1e6, n


def _time_naive() -> float:
    import psutil

    process = psutil.Process()
    times: list[float] = []
    end = time.perf_counter() + _NAIVE_SECONDS
    while (began := time.perf_counter()) < end or len(times) < 5:
        gc.collect()
        process.memory_full_info()
        os.listdir("/proc/self/fd")  # noqa: PTH208 - the naive way
        times.append(time.perf_counter() - began)
    return median(times) * 1e6


@contextmanager
def _idle_child() -> Iterator[None]:
    """Keep one idle child process alive."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield
        # Leaving the context closes the child's standard input, which ends the child.


def _print_figures(title: str, figures: Figures) -> None:
    objects, heap, blocks = figures.retained
    print(f"\n{title} ({figures.tracked:,} tracked objects); us per iteration:")
    print(f"  loop, no child process   {figures.loop:10.1f}")
    print(f"  loop, one child process  {figures.with_child:10.1f}")
    print(f"  looks of an adaptive run {figures.looks:10.1f}, spread over {figures.adaptive}")
    print(
        f"  naive way                {figures.naive:10.1f}; {figures.naive / figures.loop:,.0f} times the loop (at least {LIMIT:g})"
    )
    print(f"  retained after {RETAINING:,} iterations: {objects} gc objects, {heap} bytes of the heap, {blocks} blocks")


if __name__ == "__main__":
    sys.exit(main())
