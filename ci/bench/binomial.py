"""So many of so many out, within which limits the true share lies: Clopper and Pearson's exact interval."""

from __future__ import annotations

import math
from collections.abc import Callable

# Halvings of [0, 1]: the limits are good to 2 ** -60.
_HALVINGS = 60


def interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval that holds the true probability with at least this confidence, whatever it is.

    Args:
        hits: From 0 to `trials`.
        trials: Independent ones; with none at all nothing is known.
        confidence: Both sides together.

    Returns:
        The limits, from 0 to 1.

    Raises:
        ValueError: More hits than trials, or fewer than none.
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} of {trials} is not a share")
    tail = (1 - confidence) / 2
    low = _crossing(lambda p: 1 - at_most(hits - 1, trials, p) >= tail) if hits else 0.0
    high = _crossing(lambda p: at_most(hits, trials, p) <= tail) if hits < trials else 1.0
    return low, high


def at_most(hits: int, trials: int, p: float) -> float:
    """The probability of no more than `hits` in `trials`, each with probability `p` strictly between 0 and 1."""
    # In logarithms: a binomial coefficient of thousands has more digits than a float has range.
    whole = math.lgamma(trials + 1)
    return math.fsum(
        math.exp(
            whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * math.log(p) + (trials - k) * math.log1p(-p)
        )
        for k in range(hits + 1)
    )


def _crossing(above: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if above(middle) else (middle, high)
    return high
