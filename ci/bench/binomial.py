"""Compute the exact confidence interval of a probability from hits and trials (Clopper and Pearson)."""

from __future__ import annotations

import math
from collections.abc import Callable

# Bisection steps over [0, 1]: the limits are exact to 2 ** -60.
_BISECTION_STEPS = 60


def interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that contains the true probability with at least this confidence.

    Args:
        hits: From 0 to `trials`.
        trials: Number of independent trials; with 0 trials the interval is [0, 1].
        confidence: Confidence level of the two-sided interval.

    Returns:
        The limits, from 0 to 1.

    Raises:
        ValueError: There are more hits than trials, or fewer than 0.
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} of {trials} is not a share")
    tail = (1 - confidence) / 2
    low = _find_crossing(lambda p: 1 - at_most(hits - 1, trials, p) >= tail) if hits else 0.0
    high = _find_crossing(lambda p: at_most(hits, trials, p) <= tail) if hits < trials else 1.0
    return low, high


def at_most(hits: int, trials: int, p: float) -> float:
    """Return the probability of at most `hits` hits in `trials` trials, each with probability `p`, 0 < `p` < 1."""
    # Each term is computed from logarithms, because a binomial coefficient of thousands exceeds the range of a float.
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(p) + (trials - k) * math.log1p(-p)
        )
        for k in range(hits + 1)
    )


def _find_crossing(above: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return high
