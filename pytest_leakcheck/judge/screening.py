"""Decide after a few iterations whether a test without a mark needs to be judged in full.

Most tests of a suite are clean, and a full judgement takes 13 to 58 iterations of each. A leak in
every iteration, or in every second one, shows in any two iterations. So if no counter moves in the
first two, these decide (`at_rest`). Else the test's first iterations may have allocated what it
needs once: four more decide (`screen`), by the last two of them. A counter that has risen there,
but not in the two iterations before, may have risen once: then another four decide. A count that
falls once, between rises in most of the iterations, has risen nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.recording import Series

# Iterations after the start level.
AT_REST: Final = 2
# Iterations after these: of the first look, and of the second one. Each look compares the last
# reading with the one in the middle, so all counters must be read after `MIDDLE` iterations too.
MIDDLE: Final = 2
ITERATIONS: Final = 4
SECOND_LOOK: Final = 8
# Counters in bytes vary by less than this on clean code, in most tests. What retains less in Python
# also retains objects or blocks, which are counted one by one.
_MIN_BYTES: Final = 512
# A count that rises in at least this share of the iterations leaks, whatever it has fallen by in
# between.
_MOSTLY_RATIO: Final = 0.75
_NONE_HELD: Final[Mapping[str, int]] = MappingProxyType({})


def screen(
    series: Sequence[tuple[Series, Budget]], held: Mapping[str, int] = _NONE_HELD
) -> tuple[Verdict, ...]:
    """Return an ``ok`` with a detection floor for each resource; nothing if any has risen.

    The floor is the smallest leak that would have shown. The readings are one at the start and one
    per iteration. `held` is how much of a resource bounded caches hold, and nothing else does, in
    its unit: what they have gained in the second half of these iterations.
    """
    if any(find_risen(series, held)):
        return ()
    return tuple(
        _pass(one, budget, one.iterations // 2, held.get(one.resource, 0)) for one, budget in series
    )


def at_rest(series: Sequence[tuple[Series, Budget]]) -> tuple[Verdict, ...]:
    """Return an ``ok`` per resource, as `screen`; nothing if any moved since the start level."""
    if any(_has_moved(one, budget) for one, budget in series):
        return ()
    return tuple(_pass(one, budget, one.iterations, 0) for one, budget in series)


def _has_moved(series: Series, budget: Budget) -> bool:
    # A fall may hide a rise. Those of bytes that are resident are as common as rises.
    least, moves = (
        _min_rise(budget, series.iterations),
        [reading - series.readings[0] for reading in series.readings],
    )
    fell = min(moves) <= -least and not budget.traits.resolution
    return fell or max(moves) >= least or any(series.released)


def _pass(series: Series, budget: Budget, compared: int, held: int) -> Verdict:
    return Verdict(
        series.resource,
        "ok",
        reason=_describe(held),
        iterations=series.iterations,
        floor=_compute_floor(budget, compared),
        kind=series.kind,
        explicit=budget.explicit,
    )


def _compute_floor(budget: Budget, iterations: int) -> float | None:
    # Other growth would be in doubt, not red.
    if not budget.judges_all_growth:
        return None
    # The full judgement tolerates slow growth of blocks.
    traits = budget.traits
    return (
        max(_min_rise(budget, iterations), traits.step, 2 * traits.tolerance * iterations)
        / iterations
    )


def find_risen(
    series: Iterable[tuple[Series, Budget]], held: Mapping[str, int] = _NONE_HELD
) -> Iterable[tuple[Series, Budget]]:
    """Yield those of the series that have risen by more than caches hold, as in `screen`."""
    for counter, budget in series:
        middle, entries = counter.iterations // 2, held.get(counter.resource, 0)
        grown = counter.readings[-1] - counter.readings[middle] - entries
        often = not entries and _rises_mostly(counter, budget)
        if grown >= _min_rise(budget, middle) or often or any(counter.released[-middle:]):
            yield counter, budget


def deserve_second_look(risen: Iterable[tuple[Series, Budget]]) -> bool:
    """Return whether what rose by the first look may have risen once, and not in each iteration."""
    return all(
        series.iterations == ITERATIONS
        and not any(series.released)
        # A count has not risen in both halves, as bytes may by chance.
        and not (
            series.readings[MIDDLE] - series.readings[0] >= _min_rise(budget, MIDDLE)
            and budget.traits.unit == "count"
        )
        and not _rises_mostly(series, budget)
        for series, budget in risen
    )


def _rises_mostly(series: Series, budget: Budget) -> bool:
    if budget.traits.unit != "count":
        return False
    steps = (later - earlier for earlier, later in pairwise(series.readings))
    rises = sum(step >= _min_rise(budget, 1) for step in steps)
    return rises >= _MOSTLY_RATIO * series.iterations


def _min_rise(budget: Budget, iterations: int) -> float:
    """Return the growth in so many iterations from which on a resource has risen, in its unit."""
    least = 1 if budget.traits.unit == "count" else _MIN_BYTES
    return least + iterations * budget.per_iteration


def _describe(entries: int) -> str:
    return f"new entries of bounded caches hold {entries} of them" if entries else ""
