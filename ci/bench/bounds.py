"""Judge caches of every maximum size from 4 to 2,000 while they fill. Print the verdicts; exit 1 if one is red.

Until it is full, a cache grows like a leak. The plugin decides only at certain iterations, the looks. Whether it
distinguishes a cache from a leak must not depend on where the looks fall.
"""

from __future__ import annotations

import argparse
import functools
import gc
import itertools
import resource
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from pytest_leakcheck.config.budget import default_budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.model.finding import RED
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.runner.repetition import Repetition

BOUNDS: Final = range(4, 2001)


def lru_of(make: Callable[[int], Any], bound: int, first: int = 10_000) -> Callable[[], object]:
    """Return a step that adds an entry to an `lru_cache`; `first` is the first key."""
    numbers, load = itertools.count(first), functools.lru_cache(bound)(make)
    return lambda: load(next(numbers))


def deque_of(make: Callable[[int], Any], bound: int) -> Callable[[], object]:
    """Return a step that adds an entry to a bounded deque."""
    numbers, entries = itertools.count(10_000), deque[Any](maxlen=bound)
    return lambda: entries.append(make(next(numbers)))


def open_null(_number: int) -> object:
    """Open /dev/null."""
    return open("/dev/null")  # noqa: PTH123 - closed when it is evicted


CACHES: Final[dict[str, Callable[[int], Callable[[], object]]]] = {
    "lru_cache of ints": functools.partial(lru_of, lambda number: number),
    # CPython creates the ints up to 256 in advance, so later keys take memory that the keys they replace did not take.
    "lru_cache of ints from 0": functools.partial(lru_of, lambda number: number, first=0),
    "lru_cache of lists": functools.partial(lru_of, lambda number: [number]),
    "lru_cache of 2,000 bytes": functools.partial(lru_of, lambda _number: bytes(2000)),
    "lru_cache of open files": functools.partial(lru_of, open_null),
    "deque of open files": functools.partial(deque_of, open_null),
    "deque of dicts": functools.partial(deque_of, lambda number: {"id": number}),
}


def judge(work: Callable[[], object]) -> Result:
    """Judge a step with the default resources and effort."""
    budgets = tuple(default_budget(name) for name, one in RESOURCES.items() if one.default)
    repetition = Repetition(Plan("bounds", budgets, Effort()))
    repetition.begin()
    work()
    while repetition.iteration_done():
        work()
    return repetition.end()


def main() -> int:
    """Judge all caches; return 1 if a verdict is red."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", type=int, default=1, metavar="N", help="take every N-th bound (default: %(default)s)")
    first = "the first bound, so that several runs share the bounds (default: %(default)s)"
    parser.add_argument("--first", type=int, default=BOUNDS.start, metavar="BOUND", help=first)
    options = parser.parse_args()
    bounds = range(options.first, BOUNDS.stop, options.step)
    # Python closes an evicted file when it deallocates the file, and then issues a warning.
    warnings.simplefilter("ignore", ResourceWarning)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    reds = 0
    for name, make in CACHES.items():
        began, counts = time.perf_counter(), Counter[str]()
        for bound in bounds:
            verdicts = judge(make(bound)).verdicts
            wrong = [verdict for verdict in verdicts if verdict.outcome in RED]
            for verdict in wrong:
                print(f"  {name}, bound {bound}: {verdict.resource} {verdict.outcome}: {verdict.reason}")
            still = any(verdict.outcome == "inconclusive" for verdict in verdicts)
            counts["red" if wrong else "inconclusive" if still else "ok"] += 1
            reds += bool(wrong)
            gc.collect()
        summary = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        print(f"{name:<26} {summary}  ({time.perf_counter() - began:.0f} s)", flush=True)
    print(f"{reds} red of {len(CACHES) * len(bounds)}")
    return int(reds > 0)


if __name__ == "__main__":
    raise SystemExit(main())
