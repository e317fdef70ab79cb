"""Check the printed floor: plant a leak of that size into the same work, and count how often the plugin finds it.

The floor is the smallest growth per iteration that a clean run would have detected. Each trial judges a clean step and
takes the floor from the verdict ``ok``. It then plants a leak of that size in a second run of the step with other
random data, and judges again. Descriptors and objects leak at random, on average as often as the floor states. Memory
leaks in blocks of malloc, each as soon as the floor adds up to a block. Exit 1 if fewer than 99 of 100 leaks are found.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.model.finding import RED, Verdict
from pytest_leakcheck.runner.phases import Trial
from pytest_leakcheck.runner.repetition import Repetition
from sized_leaks import Planted
from workloads import Workload, find_workloads

# Workloads of the standard library that run in milliseconds, with different noise.
_WORKLOADS: Final = ("json_round_trip", "logging_handlers", "numbers_and_pickles", "xml_tree")
_MIN_SHARE: Final = 0.99


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
    Trial.diagnoses = False
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
