"""The slope and its interval: exact on a line, robust against outliers, and as sure as it says under three kinds of noise."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pytest_leakcheck.watch.slope import fit_slope, thin

Noise = Callable[[random.Random, int, float], list[float]]


def around_a_line(rng: random.Random, n: int, slope: float) -> list[float]:
    return [slope * i + rng.gauss(0, 5) for i in range(n)]


def at_random(rng: random.Random, n: int, slope: float) -> list[float]:
    """A leak that strikes at random: its count is a random walk around the line."""
    total, values = 0, []
    for _ in range(n):
        total += sum(rng.random() < slope / 20 for _ in range(20))
        values.append(float(total))
    return values


def in_pieces(rng: random.Random, n: int, slope: float) -> list[float]:
    """Descriptors that are open for a moment."""
    return [slope * i + rng.choice((0, 0, 0, 9, 18)) for i in range(n)]


def test_a_line_is_found_exactly() -> None:
    found = fit_slope(list(range(100)), [5 + 9.0 * x for x in range(100)])
    assert found is not None
    assert (found.value, found.low, found.high) == (9.0, 9.0, 9.0)
    assert found.level == 5 + 9.0 * found.end


def test_a_quarter_of_outliers_does_not_move_it() -> None:
    values = [2.0 * x + (10_000 if x % 4 == 0 else 0) for x in range(31)]
    found = fit_slope(list(range(31)), values)
    assert found is not None
    assert found.value == 2.0


@pytest.mark.parametrize("xs", [[], [1.0], [1.0, 2.0, 3.0, 4.0], [1.0] * 40])
def test_too_little_has_no_slope(xs: list[float]) -> None:
    assert fit_slope(xs, xs) is None


def test_thinning_takes_medians_of_blocks() -> None:
    assert thin(range(6), [0, 0, 90, 3, 3, 3], blocks=2) == [(1, 0), (4, 3)]
    assert len(thin(range(40_000), range(40_000))) == 32


@pytest.mark.parametrize("noise", [around_a_line, at_random, in_pieces], ids=lambda noise: noise.__name__)
@pytest.mark.parametrize("n", [60, 300, 1000])
def test_the_interval_holds_the_slope_as_often_as_it_says(noise: Noise, n: int) -> None:
    """Seeded, so the same in each run. 95 % of 200 are 190, and by chance seldom fewer than 183."""
    rng = random.Random(n)
    found = [fit_slope(range(n), noise(rng, n, 2.0)) for _ in range(200)]
    held = sum(one is not None and one.low <= 2.0 <= one.high for one in found)
    assert held >= 183
