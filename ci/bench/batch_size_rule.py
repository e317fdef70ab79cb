"""Simulate the rule of the write-up of incident 5: does its momentum matter, and what of its factors file is worth having?

Usage: python ci/bench/batch_size_rule.py        (rewrites the generated tables of docs/batch-size.md; a test checks them)

A *plant* is a simulated configuration: its peak over the factor is a fixed part, a linear and a square one. Each of 500
plants can be met within the limits of the rule, 0.3 to 0.8, and begins with a factor of the write-up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final, TypeAlias

from leakcheck_incidents.batch_size import policy
from leakcheck_incidents.batch_size.runs import TARGET, WITHIN, Run

PAGE: Final = Path(__file__).parents[2] / "docs" / "batch-size.md"
PART: Final = re.compile(r"(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end -->)")
MOMENTUM: Final = 0.3
# Peaks below the first figure change the factor by the second one, times the momentum, times the distance to the target.
BANDS: Final = ((0.50, 0.5), (0.70, 0.3), (0.85, 0.1), (0.95, 0.2), (math.inf, 0.5))
# The examples of the write-up: factor, peak (None: out of memory), and the next factor that it states.
EXAMPLES: Final = (
    *((0.489, 0.62, 0.531), (0.531, 0.74, 0.559), (0.559, 0.81, 0.577), (0.577, 0.86, 0.586), (0.586, 0.89, 0.589)),
    *((0.589, 0.90, 0.589), (0.589, 0.91, 0.588), (0.588, 0.89, 0.589), (0.589, 0.90, 0.589)),
    *((0.489, 0.82, 0.550), (0.550, 0.88, 0.556)),
    *((0.427, None, 0.277), (0.277, 0.89, 0.281), (0.281, 0.91, 0.279), (0.279, 0.90, 0.279)),
)
_LONGEST: Final = 60
_AFTERWARDS: Final = 12
# From the runs so far, the next factor.
Propose: TypeAlias = Callable[[Sequence[Run]], float]


def rule(factor: float, peak: float | None, momentum: float = MOMENTUM) -> float:
    """Return the next factor by the write-up's rule, which takes 15 points off a run that ran out of memory."""
    share = next(share for below, share in BANDS if (peak or 0) < below)
    moved = factor - 0.15 if peak is None else factor + momentum * share * (TARGET - peak)
    return min(0.8, max(0.3, moved))


@dataclass(frozen=True)
class Plant:
    """A configuration whose peak meets the target at `meets`; the fixed and the square part are shares of that peak."""

    meets: float
    fixed: float
    square: float
    begin: float
    seed: int

    def peak(self, factor: float) -> float:
        share = factor / self.meets
        return TARGET * (self.fixed + self.square * share**2 + (1 - self.fixed - self.square) * share)

    def runs(self, propose: Propose, noise: float, number: int, known: Sequence[Run] = ()) -> list[Run]:
        """Run it so often; `known` are the runs before. A peak has noise, as a share of it."""
        chance = Random(self.seed)  # noqa: S311 - no cryptography
        done = list(known)
        for _ in range(number):
            factor = propose(done)
            peak = self.peak(factor) * math.exp(chance.gauss(0, noise))
            done.append(Run(factor, None if peak > 1 else peak))
        return done[len(known) :]

    def settled(self, runs: Sequence[Run]) -> float:
        """Return the number of the first run from which on all are within 2 % of the target, noise excluded."""
        off = [run.oom or abs(self.peak(run.factor) - TARGET) > WITHIN for run in runs]
        return math.inf if off[-1] else max((number for number, one in enumerate(off, 1) if one), default=0) + 1


def plants(number: int = 500) -> list[Plant]:
    """Return random plants, always the same."""
    chance = Random(20_261_121)  # noqa: S311 - no cryptography
    made = []
    for seed in range(number):
        fixed = chance.uniform(0, 0.7)
        begin = chance.choice((0.45, 0.55, 0.65, 0.60)) * chance.choice((1.0, 0.75, 0.80, 0.90, 0.95))
        made.append(Plant(chance.uniform(0.3, 0.8), fixed, chance.uniform(0, 1 - fixed), begin, seed))
    return made


def momentum() -> str:
    """Return the table of the rule with several momenta, and of the policy."""
    rows = []
    for noise in (0.0, 0.01):
        for factor in (0.1, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, None):
            each = []
            for plant in plants():
                runs = plant.runs(_propose_by(factor, plant.begin), noise, _LONGEST)
                above = [plant.peak(run.factor) > TARGET for run in runs]
                crossed = sum(one is not other for one, other in pairwise(above))
                each.append((plant.settled(runs), crossed, sum(run.oom for run in runs)))
            settled, crossings, oom = zip(*each, strict=True)
            within = [f"{sum(one <= most for one in settled) / len(settled):.0%}" for most in (7, 20, _LONGEST)]
            name = "the policy" if factor is None else f"{factor:g}"
            rows.append([name, f"{noise:.0%}", *within, f"{fmean(crossings):.1f}", f"{fmean(oom):.2f}"])
    heads = ["momentum", "noise", "settled in 7 runs", "in 20", f"in {_LONGEST}", "crosses the target", "out of memory"]
    return table(heads, rows)


def brought() -> str:
    """Return the table of what a user brings over from a factors file, after some runs by the rule."""
    rows = []
    for low in (0.0, 0.1, 0.2):
        for what in ("nothing", "the factor", "the runs"):
            each = [_brought(plant, what, low) for plant in plants()]
            settled, oom = zip(*each, strict=True)
            rows.append([what, f"{low:.0%}", f"{sorted(settled)[len(settled) // 2]:g}", f"{fmean(oom):.2f}"])
    return table(["brought over", "peaks read too low by", "settled after, median", "out of memory"], rows)


def _propose_by(momentum: float | None, begin: float) -> Propose:
    def propose(runs: Sequence[Run]) -> float:
        if momentum is None:
            return policy.propose(runs, begin).factor
        return rule(runs[-1].factor, runs[-1].peak, momentum) if runs else begin

    return propose


def _brought(plant: Plant, what: str, low: float) -> tuple[float, int]:
    """Return after how many of 12 runs the policy settles, and how many run out of memory, after ten by the rule."""
    factor, theirs = plant.begin, []
    chance = Random(plant.seed)  # noqa: S311 - no cryptography
    for _ in range(10):
        peak = plant.peak(factor) * math.exp(chance.gauss(0, 0.005))
        theirs.append(Run(factor, None if peak > 1 else peak * (1 - low)))
        factor = rule(factor, theirs[-1].peak)
    known = theirs if what == "the runs" else []
    begin = factor if what == "the factor" else plant.begin
    runs = plant.runs(_propose_by(None, begin), 0.005, _AFTERWARDS, known)
    return plant.settled(runs), sum(run.oom for run in runs)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *rows))


def main() -> None:
    """Rewrite the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    made = {"momentum": momentum, "brought": brought}
    PAGE.write_text(PART.sub(lambda part: part[1] + made[part[2]]() + part[3], text), encoding="utf-8")


if __name__ == "__main__":
    main()
