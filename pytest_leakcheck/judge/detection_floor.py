"""Compute the detection floor: the smallest leak that a series would have shown. Reports print it with an `ok`.

A countable (exactly counted) resource has no noise. By chance alone, q iterations without a rise would exclude, with
99 % confidence, a leak that occurs at random once in q / 4.6 iterations (4.6 is -ln 0.01). But the rule
(`judge.growth`) also gives ``ok`` after a few early rises and then a long rest, and it examines a series several times.
It therefore needs more quiet iterations: with `_FLOOR_FACTORS`, less than 1 % of 6,000 simulated leaks at each length
were missed.

For a counter with noise, the floor is found by trial: the smallest leak, rounded down to multiples of the counter's
smallest increase, that the rule calls growing when added to the readings. Another run has different noise, so the rule
must detect the leak in each of several rotations of this run's increments. It then detected such a leak in 600 of 600
simulated runs that continued until they were judged, with steady, spiky or one-sided noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.model.resources import Resource

# In the unit of the resource per iteration (1 TiB for bytes). If the rule does not detect even this slope, the series
# is too short.
_MAX_SLOPE: Final = 1 << 40
# About this many rotations are tried, in addition to the series itself.
_ROTATIONS: Final = 7
# The factor that applies up to a number of quiet iterations: a leak once in (quiet iterations / factor) is excluded.
_FLOOR_FACTORS: Final = ((13, 6.0), (30, 8.5), (1 << 40, 10.0))


def detection_floor(
    readings: Sequence[int], resource: Resource, tolerance: float, first_look: int, quiet: int
) -> float | None:
    """Return the least sustained growth per iteration that would have been called a leak; None for too short a series.

    The readings were judged clean. `quiet` is the number of iterations since the lower envelope last rose.
    """
    if resource.scarce:
        return resource.grain * next(certain for longest, certain in _FLOOR_FACTORS if quiet <= longest) / max(1, quiet)
    orders = _rotate_readings(readings)

    def shows(slope: int) -> bool:
        planted = [slope * i // resource.step * resource.step for i in range(len(readings))]
        return all(
            growth([value + leak for value, leak in zip(order, planted, strict=True)], tolerance, first_look).state
            == "growing"
            for order in orders
        )

    low, high = 0, 1
    while not shows(high):
        low, high = high, high * 2
        if high > _MAX_SLOPE:
            return None
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return float(high)


def _rotate_readings(readings: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the series and several rotations of its increments, without duplicates."""
    moves = [after - before for before, after in pairwise(readings)]
    step = max(1, len(moves) // (_ROTATIONS + 1))
    starts = range(0, len(moves), step)
    rotated = (accumulate(moves[at:] + moves[:at], initial=readings[0]) for at in starts)
    return list(dict.fromkeys(map(tuple, rotated)))
