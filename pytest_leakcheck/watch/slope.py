"""Estimate the slope of a counter over time or steps, with an interval. Works on numbers only.

**The estimate** is the median of the slopes of all pairs of points (Theil 1950, Sen 1968). Up to 29
% of the readings may have any value, such as the count of descriptors that are open for a moment.

**The interval** combines two uncertainties, as the root of the sum of their squares:

* Noise around the line. Its interval lies between two ranks in the sorted slopes of the pairs,
  which follow from the 95 % interval of Kendall's S (Sen 1968).
* A line that itself wanders, like the count of a leak that occurs at random. A random walk over n
  steps, each of variance v, has a slope of variance 1.2 v / n (least squares on a random walk). v
  is the variance of the increments plus twice the covariance of successive increments, and is 0 for
  noise around a line. The covariance of few points is uncertain, so v is at least 2 % of the
  variance of the increments.

Points are first thinned to block medians, so a series of a whole night takes no more time than one
of a minute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import Final

# Quantile of the standard normal distribution, two-sided 95 %.
_NORMAL_QUANTILE: Final = 1.96
# Quantile of Student's t distribution, for the standard error of the random walk.
_STUDENT_QUANTILE: Final = 2.5
# Smallest variance of the random walk, as a share of the variance of the increments.
_MIN_WALK_VARIANCE_SHARE: Final = 0.02
# The maximum number of points. The number of pairs grows with its square: 32 points form 496 pairs.
_MAX_POINTS: Final = 32
# The minimum number of points: fewer have no meaningful interval.
FEWEST: Final = 5


@dataclass(frozen=True, slots=True)
class Slope:
    """How fast a counter grows from `start` to `end`.

    `low` to `high` contains the slope in about 95 % of cases. Slopes are in the unit of the counter
    per unit of x. `level` is the value of the line at `end`.
    """

    value: float
    low: float
    high: float
    start: float
    end: float
    level: float


def fit_slope(xs: Sequence[float], ys: Sequence[float]) -> Slope | None:
    """Fit the slope of y over ascending x; None below five different x after thinning.

    Among equal x, the first counts.
    """
    points = thin(xs, ys)
    if len(points) < FEWEST:
        return None
    slopes = sorted(
        (y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in combinations(points, 2) if x1 > x0
    )
    value = median(slopes)
    offset = median(y - value * x for x, y in points)
    n = len(points)
    # The variance of Kendall's S for n points without a trend.
    spread = _NORMAL_QUANTILE * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((len(slopes) - spread) / 2))
    high = min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))
    walk = _STUDENT_QUANTILE * _walk_error(points, value)
    below, above = math.hypot(value - slopes[low], walk), math.hypot(slopes[high] - value, walk)
    end = points[-1][0]
    return Slope(value, value - below, value + above, points[0][0], end, offset + value * end)


def thin(
    xs: Sequence[float], ys: Sequence[float], blocks: int = _MAX_POINTS
) -> list[tuple[float, float]]:
    """Reduce a series to at most `blocks` points: the median x and y of successive blocks."""
    size = max(1, math.ceil(len(xs) / blocks))
    starts = range(0, len(xs), size)
    points = [(median(xs[at : at + size]), median(ys[at : at + size])) for at in starts]
    # A last block that is less than half full is dropped: it would weigh as much as a full one.
    if len(points) > 1 and len(xs) % size and 2 * (len(xs) % size) < size:
        points.pop()
    return (
        [points[0], *(after for before, after in pairwise(points) if after[0] > before[0])]
        if points
        else []
    )


def _walk_error(points: Sequence[tuple[float, float]], slope: float) -> float:
    """Return the standard error that a random walk around the line causes in the slope."""
    moves = [y1 - y0 - slope * (x1 - x0) for (x0, y0), (x1, y1) in pairwise(points)]
    n = len(moves)
    variance = sum(move * move for move in moves) / n
    covariance = sum(before * after for before, after in pairwise(moves)) / n
    lasting = max(variance + 2 * covariance, _MIN_WALK_VARIANCE_SHARE * variance)
    return math.sqrt(1.2 * lasting * n) / (points[-1][0] - points[0][0])
