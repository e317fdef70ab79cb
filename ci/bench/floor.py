"""Is the printed floor true? A leak of just that size is planted, and counted is how often it is found.

An ``ok`` prints the smallest sustained growth that this very run would have shown. Here a workload is run clean, its
floor is read, and fresh processes with another seed run it with a leak as large as the floor, and with a fifth of it,
which is not claimed to be found. So the floor of one run is held against another run: that is how a report is read,
before the code is changed.

What is claimed for ``heap``: one block of the floor's size kept by each step is found. Beside it stand leaks that come
in lumps, of which nothing is claimed: a chunk of 32 bytes or more once in a few steps, as large as the floor on the
average, twice as large, and a fifth. The floor of ``fd`` is a probability: a descriptor is kept after a step at random.

Exit 1 where a claimed leak is called ``ok`` more often than once in 100, as far as the number of runs can tell (95 %).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Final

from binomial import interval
from fresh import Row, run
from workloads import find_workloads

WORKLOADS: Final = ("json_round_trip", "numpy_mixed_sizes", "torch_variable_length", "av_decode")
MISSED: Final = 0.01
# Clean runs have even seeds, planted ones odd seeds.
_OTHER: Final = 1


@dataclass(frozen=True, slots=True)
class Case:
    """What is planted: the kind of leak (`planting.with_leak`), its size in floors, and whether it must be found."""

    resource: str
    kind: str
    part: float
    claimed: bool = False


CASES: Final = (
    Case("heap", "heap", 1.0, claimed=True),
    Case("heap", "lumps", 2.0),
    Case("heap", "lumps", 1.0),
    Case("heap", "lumps", 0.2),
    Case("fd", "fd", 1.0, claimed=True),
    Case("fd", "fd", 0.2),
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A leak and what was said of it.

    Attributes:
        case: What was planted.
        amount: The same per step, in the unit of the resource.
        outcome: Of that resource; ``error`` where nothing was said of it.
        iterations: What the verdict rests on.
    """

    case: Case
    amount: float
    outcome: str
    iterations: int


def main() -> int:
    parser = argparse.ArgumentParser(description="How often a leak of the size of the printed floor is found.")
    parser.add_argument("--runs", type=int, default=100, help="clean ones of each workload (default: 100)")
    parser.add_argument("--jobs", type=int, default=2, help="side by side (default: 2)")
    parser.add_argument("--only", action="append", metavar="NAME", help=f"default: {', '.join(WORKLOADS)}")
    parser.add_argument("--resource", choices=sorted({case.resource for case in CASES}), help="default: each")
    wanted = parser.parse_args()
    cases = [case for case in CASES if wanted.resource in (None, case.resource)]
    known = find_workloads()
    names: list[str] = wanted.only or list(WORKLOADS)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no workload {unknown[0]!r}: there are {', '.join(known)}")
    print("| workload | leak | per step | runs | red | inconclusive | ok | error | missed | iterations |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    good = True
    with ThreadPoolExecutor(wanted.jobs) as pool:
        for name in names:
            if known[name].missing:
                print(f"| {name} | left out: {', '.join(known[name].missing)} not importable here |")
                continue
            planted = pool.map(plant, [name] * wanted.runs, range(wanted.runs), [cases] * wanted.runs)
            tried = [one for some in planted for one in some]
            for case in cases:
                good &= _print(name, case, [one for one in tried if one.case == case])
    print("the floors are true" if good else "A FLOOR IS NOT TRUE")
    return 0 if good else 1


def plant(name: str, number: int, cases: Sequence[Case]) -> list[Planted]:
    """One clean run of a workload, and one with each of these leaks that its floors call for."""
    clean = run(name, 2 * number)
    planted = []
    for case in cases:
        floor = clean.floors.get(case.resource)
        if floor is None:
            # What is inconclusive claims no floor.
            continue
        amount = case.part * floor
        row = run(name, 2 * number + _OTHER, leak=f"{case.kind}:{amount:.6g}")
        planted.append(Planted(case, amount, _outcome(row, case.resource), row.iterations))
    return planted


def _outcome(row: Row, resource: str) -> str:
    # After a red nothing else is judged, and another resource's red is no find of ours.
    return row.resources.get(resource, "error")


def _print(name: str, case: Case, tried: Sequence[Planted]) -> bool:
    """A row of the table. Returns whether what is claimed may be true."""
    if not tried:
        print(f"| {name} | {case.kind} | no clean run stated a floor to plant at |", flush=True)
        return not case.claimed
    counts = Counter("red" if one.outcome == "leak" else one.outcome for one in tried)
    whole = len(tried) - counts["error"]
    low, high = interval(counts["ok"], whole)
    amount = f"{case.part:g} × floor: {median(one.amount for one in tried):.3g}"
    words = " | ".join(str(counts[word]) for word in ("red", "inconclusive", "ok", "error"))
    missed = f"{counts['ok'] / whole:.1%} ({low:.1%} to {high:.1%})" if whole else "unknown"
    iterations = f"{median(one.iterations for one in tried):.0f}"
    kind = f"{case.kind}, claimed" if case.claimed else case.kind
    print(f"| {name} | {kind} | {amount} | {len(tried)} | {words} | {missed} | {iterations} |", flush=True)
    return not case.claimed or low <= MISSED


if __name__ == "__main__":
    sys.exit(main())
