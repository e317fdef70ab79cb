"""Check how reliably the plugin identifies scaling laws. Print a Markdown table; exit 1 if fewer than 99 % are right.

A scaling law states how peak memory grows with the size of the work. A trial runs one workload at six sizes, each in a
fresh child process, and fits a law to the six peaks. The child process measures with the meter that tests use: it
collects garbage, trims the heap, reads the resident size at each call and return, and reads the kernel's high-water
mark. Each trial chooses at random whether it retains one large block, many small objects, or both, and adds a constant
of up to 64 MiB. The 99 % apply to the laws, and to the verdicts on budgets.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.config.scaling_marker import parse_bound
from pytest_leakcheck.judge.complexity_law import BORDER
from pytest_leakcheck.judge.judge_scaling import judge_points
from pytest_leakcheck.model.recording import Law
from pytest_leakcheck.runner.peak_meter import Meter

KIB: Final = 1 << 10
MIB: Final = 1 << 20
SIZES: Final = (8, 16, 32, 64, 128, 256)
# The sizes that an inconclusive verdict on six sizes advises to add.
MORE: Final = (512, 1024)
NEEDED: Final = 0.99
BELOW: Final = {"O(log n)": "O(1)", "O(sqrt n)": "O(log n)", "O(n)": "O(sqrt n)"}
STYLES: Final = ("block", "objects", "both")
# Each unit of work allocates and releases this buffer, so that the peak of a constant workload is not its first
# allocation.
BUFFER: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Workload:
    """How much memory is retained after a number of units of work.

    Its peaks follow the law `order` with this exponent, None for a constant. `per` is in bytes per unit of work, per unit
    of its root, or per doubling, as the law requires; for a constant, all bytes.
    """

    name: str
    order: str
    exponent: float | None
    per: int

    def kept(self, size: int) -> int:
        """Return the bytes that are retained once `size` units are done."""
        if self.exponent is None:
            return self.per
        return round(self.per * (math.log2(size) if self.exponent == 0 else size**self.exponent))


WORKLOADS: Final = (
    Workload("constant 32 MiB", "O(1)", None, 32 * MIB),
    Workload("constant 200 KiB", "O(1)", None, 200 * KIB),
    Workload("4 MiB per doubling", "O(log n)", 0.0, 4 * MIB),
    Workload("128 KiB per doubling", "O(log n)", 0.0, 128 * KIB),
    Workload("4 MiB times the root", "O(sqrt n)", 0.5, 4 * MIB),
    Workload("64 KiB times the root", "O(sqrt n)", 0.5, 64 * KIB),
    Workload("1 MiB per unit", "O(n)", 1.0, MIB),
    Workload("4 KiB per unit", "O(n)", 1.0, 4 * KIB),
)


def work(workload: Workload, size: int, style: str, constant: int, dice: random.Random) -> None:
    """Do `size` units of work and retain what the workload defines."""
    kept: list[object] = [bytearray(constant)]
    share = {"block": 1.0, "objects": 0.0, "both": 0.5}[style]
    small = 0
    for unit in range(1, size + 1):
        buffer = bytearray(BUFFER)
        due = round(workload.kept(unit) * (1 - share))
        while small < due:
            one = bytes(dice.randrange(33, 2000)) if due - small > 2000 else bytes(max(1, due - small - 33))
            kept.append(one)
            small += len(one) + 33
        del buffer
    kept.append(bytearray(round(workload.kept(size) * share)))


def peak(run: Callable[[], object]) -> tuple[int, bool]:
    """Return the peak rise of the resident size in a fresh child process, in bytes, and whether it is exact."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            meter = Meter(["rss"])
            meter.begin()
            run()
            _series, peaks, _phases = meter.end()
            os.write(write, json.dumps([peaks["rss"], meter.exact]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        rise, exact = json.load(answers)
    os.waitpid(child, 0)
    return rise, exact


def trial(workload: Workload, seed: int, sizes: Sequence[int]) -> list[tuple[int, bool]]:
    """Return the peak at each size; the seed determines the constant and how memory is retained."""
    dice = random.Random(seed)  # noqa: S311 - sizes of payloads
    style, constant = dice.choice(STYLES), dice.randrange(0, 64 * MIB)
    return [peak(lambda size=size: work(workload, size, style, constant, dice)) for size in sizes]  # type: ignore[misc]


def tally(workload: Workload, trials: int) -> tuple[int, int]:
    """Run the trials of a workload and print its row; return how many laws were right, and how many verdicts wrong."""
    laws, wrong, unsure, still = [], 0, 0, 0
    for seed in range(trials):
        peaks = trial(workload, seed, SIZES)
        own, law = judge(workload.order, SIZES, peaks)
        below = BELOW.get(workload.order)
        lower = judge(below, SIZES, peaks)[0] if below else "over_budget"
        wrong += own == "over_budget" or lower == "ok"
        if own == "inconclusive":
            unsure += 1
            more = [*peaks, *trial(workload, seed, MORE)]
            still += judge(workload.order, (*SIZES, *MORE), more)[0] == "inconclusive"
        laws.append(law)
    right = sum(order(law) == workload.order for law in laws)
    errors = max(abs((law.exponent or 0.0) - (workload.exponent or 0.0)) for law in laws)
    slopes = max(abs(law.slope / workload.per - 1) for law in laws)
    exponent = "" if workload.exponent is None else f"{errors:.2f}"
    slope = f"{100 * slopes:.1f} %" if workload.exponent == 1 else ""
    cells = (workload.name, workload.order, f"{right}/{trials}", wrong, unsure, still, exponent, slope)
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return right, wrong


def judge(text: str, sizes: Sequence[int], points: Sequence[tuple[int, bool]]) -> tuple[str, Law]:
    """Judge the points under a budget; return the outcome and the law that was fitted."""
    peaks, exact = [peak for peak, _exact in points], all(exact for _peak, exact in points)
    verdict = judge_points("rss", "units", sizes, peaks, parse_bound(text, "units", "bytes"), exact=exact)
    assert verdict.law is not None
    return verdict.outcome, verdict.law


def order(law: Law) -> str:
    """Return the name of a law in a budget; an exponent from 0.25 to 0.75 counts as the square root."""
    return "O(sqrt n)" if law.exponent is not None and BORDER <= law.exponent < 1 - BORDER else law.order


def main() -> int:
    """Run all trials; return 1 if too many laws or verdicts are wrong."""
    parser = argparse.ArgumentParser(description="Laws that are put in, and the laws that come out.")
    parser.add_argument("--trials", type=int, default=50, help="of each workload (default: 50)")
    trials: int = parser.parse_args().trials
    print("| kept | law | right | wrong verdict | not sure | with 2 sizes more | exponent off by | slope off by |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    tallies = [tally(workload, trials) for workload in WORKLOADS]
    right, wrong = (sum(column) / (trials * len(WORKLOADS)) for column in zip(*tallies, strict=True))
    print(f"\n{right:.1%} of the laws right, {1 - wrong:.1%} of the verdicts not wrong; 99 % needed of each")
    return int(min(right, 1 - wrong) < NEEDED)


if __name__ == "__main__":
    sys.exit(main())
