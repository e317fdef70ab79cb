"""What a series would have shown: the detection floor that is printed with every `ok`. Pure.

A scarce counter is exact, so chance alone would let q iterations that stood still exclude a leak that strikes at random once
in q / 4.6 (-ln 0.01) iterations, at 99 %. The rule is called ``ok`` also after a few early rises and then a long rest, and at
several looks, so it takes more: `_CERTAIN` is what 6,000 simulated leaks at each length were missed by in less than 1 %.

For a counter with noise the floor is found by trial. A leak is planted in the readings, in pieces as the counter would see
it, and the least that the rule calls growing is the floor. The noise of another run of the same work is another, so the leak must
show in each of several rotations of this run's: such a leak was then found in 600 of 600 simulated runs that went on until
they were judged, in noise that is steady, spiky or one-sided.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.model.resources import Resource

# A slope of a TiB per iteration that would not have shown: the series is too short to say anything.
_LARGEST: Final = 1 << 40
_ROTATIONS: Final = 7
# Up to so many quiet iterations, what their number is divided by.
_CERTAIN: Final = ((13, 6.0), (30, 8.5), (1 << 40, 10.0))


def detection_floor(
    readings: Sequence[int], resource: Resource, tolerance: float, first_look: int, quiet: int
) -> float | None:
    """The least sustained growth per iteration that would have been called a leak, in the unit of the resource.

    Args:
        readings: What was judged clean.
        resource: Of which counter.
        tolerance: Growth per iteration that is allowed.
        first_look: As for `growth.growth`.
        quiet: For how many iterations the counter has stood still.

    Returns:
        The floor, or None where the series is too short for any.
    """
    if resource.scarce:
        return resource.grain * next(certain for longest, certain in _CERTAIN if quiet <= longest) / max(1, quiet)
    orders = _orders(readings)

    def shows(slope: int) -> bool:
        planted = [slope * i // resource.grain * resource.grain for i in range(len(readings))]
        return all(
            growth([value + leak for value, leak in zip(order, planted, strict=True)], tolerance, first_look).state
            == "growing"
            for order in orders
        )

    low, high = 0, 1
    while not shows(high):
        low, high = high, high * 2
        if high > _LARGEST:
            return None
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return float(high)


def _orders(readings: Sequence[int]) -> list[tuple[int, ...]]:
    """The series as it was, and with its moves begun elsewhere; alike ones once."""
    moves = [after - before for before, after in pairwise(readings)]
    step = max(1, len(moves) // (_ROTATIONS + 1))
    starts = range(0, len(moves), step)
    rotated = (accumulate(moves[at:] + moves[:at], initial=readings[0]) for at in starts)
    return list(dict.fromkeys(map(tuple, rotated)))
