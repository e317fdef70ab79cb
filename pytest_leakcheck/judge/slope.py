"""The slope of a counter over time or steps, with an interval. Numbers only.

**The estimate** is the median of the slopes of all pairs of points (Theil 1950, Sen 1968): up to 29 % of the readings may be
anything at all, such as descriptors that are open for a moment.

**The interval** joins two kinds of doubt, as the root of the sum of their squares. Noise that comes and goes around the line: the ranks
of these slopes that Kendall's S leaves at 95 % (Sen 1968). And a line that itself wanders, as the count of a leak that strikes at random
does: a random walk over n steps, each of variance v, has a slope of variance 1.2 v / n (least squares on a random walk); v is the
variance of the increments plus twice their covariance with the next, which for noise that comes and goes is 0. The
covariance of few points is uncertain, so v is at least 2 % of the variance of the increments.

Points are first thinned to block medians, which costs no more for a night than for a minute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import Final

# Of the standard normal distribution, for 95 % on both sides.
_NORMAL: Final = 1.96
_STUDENT: Final = 2.5
_LEAST: Final = 0.02
# Pairs grow with the square: 32 points are 496 of them.
_BLOCKS: Final = 32
# Fewer points have no interval that means anything.
FEWEST: Final = 5


@dataclass(frozen=True, slots=True)
class Slope:
    """How fast a counter grows.

    Attributes:
        value: In the unit of the counter per unit of x.
        low: The interval that holds it in about 95 % of cases.
        high: Its upper end.
        start: The first x that it was read from.
        end: The last.
        level: What the line comes to at `end`, in the unit of the counter.
    """

    value: float
    low: float
    high: float
    start: float
    end: float
    level: float


def fit_slope(xs: Sequence[float], ys: Sequence[float]) -> Slope | None:
    """The slope of y over x.

    Args:
        xs: In rising order; equal neighbours count as one.
        ys: The counter there.

    Returns:
        The slope, or None where there are fewer than five different x.
    """
    points = thin(xs, ys)
    if len(points) < FEWEST:
        return None
    slopes = sorted((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in combinations(points, 2) if x1 > x0)
    value = median(slopes)
    offset = median(y - value * x for x, y in points)
    spread = _NORMAL * math.sqrt(_variance(len(points)))
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    walk = _STUDENT * _walk(points, value)
    below, above = math.hypot(value - slopes[low], walk), math.hypot(slopes[high] - value, walk)
    end = points[-1][0]
    return Slope(value, value - below, value + above, points[0][0], end, offset + value * end)


def thin(xs: Sequence[float], ys: Sequence[float], blocks: int = _BLOCKS) -> list[tuple[float, float]]:
    """At most so many points: of successive blocks the middle x and the median y."""
    size = max(1, math.ceil(len(xs) / blocks))
    starts = range(0, len(xs), size)
    points = [(median(xs[at : at + size]), median(ys[at : at + size])) for at in starts]
    # The last block may be cut short; of a single reading it would weigh as much as a whole one.
    if len(points) > 1 and len(xs) % size and 2 * (len(xs) % size) < size:
        points.pop()
    return [points[0], *(after for before, after in pairwise(points) if after[0] > before[0])] if points else []


def _variance(n: int) -> float:
    """Of Kendall's S among n points without a trend."""
    return n * (n - 1) * (2 * n + 5) / 18


def _walk(points: Sequence[tuple[float, float]], slope: float) -> float:
    """The standard error of a slope that a random walk around its line makes."""
    moves = [y1 - y0 - slope * (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
    n = len(moves)
    variance = sum(move * move for move in moves) / n
    covariance = sum(before * after for before, after in pairwise(moves)) / n
    lasting = max(variance + 2 * covariance, _LEAST * variance)
    return math.sqrt(1.2 * lasting * n) / (points[-1][0] - points[0][0])
