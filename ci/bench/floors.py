"""Check the printed floor: plant a leak of that size into the same work, and count how often the plugin finds it.

The floor is the smallest growth per iteration that a clean run would have detected. Each trial judges a clean step and
takes the floor from the verdict ``ok``. It then plants a leak of that size in a second run of the step with other
random data, and judges again. Descriptors and objects leak at random, on average as often as the floor states. Memory
leaks in blocks of malloc, each as soon as the floor adds up to a block. Exit 1 if fewer than 99 of 100 leaks are found.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.model.finding import RED, Verdict
from pytest_leakcheck.runner.repetition import Measuring, Repetition
from workloads import Workload, find_workloads

# Workloads of the standard library that run in milliseconds, with different noise.
_WORKLOADS: Final = ("json_round_trip", "logging_handlers", "numbers_and_pickles", "xml_tree")
_MIN_SHARE: Final = 0.99
# Size of the table of leaked blocks. A trial has fewer iterations, and leaks at most one block in each.
_MAX_BLOCKS: Final = 20_000


class Planted:
    """A leak of `floor` units of a resource per iteration. Call it once per iteration; `release` ends it.

    If the floor is not a whole number, `chance` decides when one more unit is leaked.
    """

    def __init__(self, resource: str, floor: float, chance: Random) -> None:
        self._leak = {"fd": self._open, "heap": self._allocate, "object": self._keep}[resource]
        self._floor, self._chance = floor, chance
        self._descriptors: list[int] = []
        self._kept: list[list[object]] = []
        # The table of blocks has its full size from the start, so that it adds nothing to the heap.
        self._blocks = array("Q", bytes(8 * _MAX_BLOCKS))
        self._count, self._due = 0, 0.0
        self._libc: Any = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        self._libc.malloc.argtypes = [ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]

    def __call__(self) -> None:
        self._leak()

    def _strikes(self) -> int:
        whole = int(self._floor)
        return whole + (self._chance.random() < self._floor - whole)

    def _open(self) -> None:
        for _ in range(self._strikes()):
            self._descriptors.append(os.open("/dev/null", os.O_RDONLY))

    def _keep(self) -> None:
        for _ in range(self._strikes()):
            self._kept.append([])

    def _allocate(self) -> None:
        # A block of n bytes takes n + 8 bytes, rounded up to a multiple of 16, and at least 32.
        self._due += self._floor
        size = max(32, int(self._due) // 16 * 16)
        if self._due >= size:
            self._blocks[self._count] = self._libc.malloc(size - 8)
            self._count += 1
            self._due -= size

    def release(self) -> None:
        """Release everything that was leaked."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        for block in self._blocks[: self._count]:
            self._libc.free(block)
        self._kept.clear()


def judge(step: Callable[[], object], resource: str) -> Verdict:
    """Judge a step like a test with the default settings, but without their minimum time of 3 s."""
    repetition = Repetition(Plan("floor", (Budget(resource),), Effort(min_time=0)))
    repetition.begin()
    step()
    while repetition.iteration_done():
        step()
    return repetition.end().verdicts[0]


def trial(resource: str, workload: Workload, folder: Path, number: int) -> tuple[float | None, Verdict]:
    """Return the floor that a clean run states, and the verdict on a leaky one, with data from the number of the trial.

    If the clean run states no floor: None, and the verdict on the clean run.
    """
    clean = judge(workload.step(2 * number, folder), resource)
    if clean.floor is None:
        return None, clean
    step = workload.step(2 * number + 1, folder)
    planted = Planted(resource, clean.floor, Random(number))  # noqa: S311 - reproducible, no secret

    def leaky() -> None:
        step()
        planted()

    try:
        return clean.floor, judge(leaky, resource)
    finally:
        planted.release()


def main() -> int:
    """Print a row per resource; return 1 if too few leaks were found."""
    parser = argparse.ArgumentParser(description="Leaks of the size of the printed floor.")
    parser.add_argument("--trials", type=int, default=100, metavar="N", help="per resource (default: 100)")
    trials = parser.parse_args().trials
    # Only the verdict is wanted, not its cause.
    Measuring.diagnoses = False
    known = find_workloads()
    print("| resource | trials | floor (median) | red | other |\n| --- | ---: | ---: | ---: | --- |")
    enough = True
    with tempfile.TemporaryDirectory() as folder:
        for resource in ("fd", "heap", "object"):
            floors, red, others = [], 0, []
            for number in range(trials):
                workload = known[_WORKLOADS[number % len(_WORKLOADS)]]
                floor, verdict = trial(resource, workload, Path(folder), number)
                if floor is None:
                    others.append(f"{workload.name}: clean run {verdict.outcome}")
                    continue
                floors.append(floor)
                if verdict.outcome in RED:
                    red += 1
                else:
                    others.append(f"{workload.name}: {verdict.outcome} ({verdict.reason})")
            enough &= red >= _MIN_SHARE * len(floors)
            print(f"| {resource} | {len(floors)} | {median(floors):.3g} | {red} | {'; '.join(others)} |", flush=True)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
