from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.judge.complexity_law import fit_law, standstill
from pytest_leakcheck.model.recording import Law

KIB, MIB = 2**10, 2**20
SIZES = (8, 16, 32, 64, 128, 256)
NOISE = 48 * KIB
PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


def fit(peaks: list[int], sizes: tuple[int, ...] = SIZES, resolution: int = 0, noise: int = 0) -> Law:
    return fit_law(sizes, peaks, resolution=resolution, noise=noise)


# Each law as it grows, and as it looks once the program is fixed.
@pytest.mark.parametrize(
    ("peaks", "order", "exponent"),
    [
        ([n * MIB for n in SIZES], "O(n)", 1.0),
        ([round(4 * MIB * n**0.5) for n in SIZES], "O(n^0.50)", 0.5),
        ([round(4 * MIB * math.log2(n)) for n in SIZES], "O(log n)", 0.0),
        ([n * n * KIB for n in SIZES], "O(n^2.00)", 2.0),
        # A tenth of what is held, however much that is: no share of the peak is taken for constant.
        ([1024 * MIB + 4 * KIB * n for n in SIZES], "O(n)", 1.0),
        ([1024 * MIB + 200 * KIB] * 6, "O(1)", None),
    ],
)
def test_memory(peaks: list[int], order: str, exponent: float | None) -> None:
    law = fit(peaks, resolution=256 * KIB, noise=NOISE)
    assert (law.order, law.exponent) == (order, exponent)
    if exponent is not None:
        assert law.exponents is not None
        assert law.exponents[0] <= exponent <= law.exponents[1]


@pytest.mark.parametrize(
    ("peaks", "settles"),
    [
        # A cache that is full from 64 on, and one that the sizes do not fill.
        ([8, 16, 32, 64, 64, 64], 64),
        ([8, 16, 32, 64, 100, 100], None),
        ([0, 1, 1, 1, 1, 1], 16),
        ([0, 0, 0, 0, 1, 1], None),
        ([0, 0, 0, 1, 1, 1], 64),
        ([0, 100, 200, 300, 305, 304], 64),
    ],
)
def test_growth_that_ends(peaks: list[int], settles: int | None) -> None:
    law = fit(peaks)
    assert law.settles == settles
    assert (law.order == "O(1)") == (settles is not None)


def test_a_logarithm_never_settles_however_many_sizes() -> None:
    sizes = tuple(2**step for step in range(30))
    assert fit(list(range(30)), sizes).order == "O(log n)"
    assert standstill(29, 30, 0) < 2


def test_three_sizes_cannot_show_that_growth_ended_and_admit_any_exponent() -> None:
    law = fit([0, 4, 4], (1, 2, 4))
    assert law.settles is None
    assert law.exponents == (-1.0, 3.0)


def test_the_slope_is_per_unit_and_its_interval_as_wide_as_the_noise() -> None:
    law = fit([7 * n + 100 for n in SIZES])
    assert law.slope == pytest.approx(7)
    assert list(law.slopes) == pytest.approx([7, 7])
    noisy = fit([7 * n + 100 for n in SIZES], noise=50)
    assert noisy.slopes[0] < 7 < noisy.slopes[1]


def test_one_peak_that_is_off_does_not_move_the_slope() -> None:
    peaks = [n * MIB for n in SIZES]
    peaks[2] += 40 * MIB
    assert fit(peaks).slope == pytest.approx(MIB, rel=0.01)


SHAPES: list[tuple[float, Callable[[float], float]]] = [(0.0, math.log2), (0.5, math.sqrt), (1.0, float)]


@pytest.mark.parametrize(("exponent", "shape"), SHAPES)
def test_under_noise_the_exponent_is_near_and_in_its_interval(exponent: float, shape: Callable[[float], float]) -> None:
    dice, near, inside = random.Random(1), 0, 0
    unit = MIB / (shape(256) - shape(8))
    for _ in range(200):
        law = fit([round(4 * unit * shape(n) + dice.gauss(0, NOISE)) for n in SIZES], noise=NOISE)
        assert law.exponent is not None
        assert law.exponents is not None
        near += abs(law.exponent - exponent) <= 0.25
        inside += law.exponents[0] <= exponent <= law.exponents[1]
    assert near >= 198
    assert inside >= 186


@PROPERTY
@given(
    st.lists(st.integers(0, 10**9), min_size=6, max_size=6),
    st.integers(1, 1000),
    st.integers(-(10**9), 10**9),
)
def test_neither_a_factor_nor_a_constant_changes_the_order(peaks: list[int], factor: int, constant: int) -> None:
    law = fit(peaks)
    assert fit([peak * factor + constant for peak in peaks]).order == law.order


@PROPERTY
@given(st.lists(st.integers(0, 2**62), min_size=3, max_size=12), st.integers(0, 2**20), st.integers(0, 2**20))
def test_whatever_the_peaks_there_is_a_law(peaks: list[int], resolution: int, noise: int) -> None:
    law = fit(peaks, tuple(3**step for step in range(len(peaks))), resolution, noise)
    assert (law.exponent is None) == (law.order == "O(1)") == (law.exponents is None)
    assert law.slopes[0] <= law.slope <= law.slopes[1]
    assert law.resolution >= resolution
    if law.exponent is not None and law.exponents is not None:
        assert law.exponents[0] <= law.exponent <= law.exponents[1]


# What is known of a peak: that a count is whole, its noise, or how it scatters about the law. Four times the variance
# doubles the interval.
@pytest.mark.parametrize(
    ("peaks", "noise", "exponents"),
    [
        ((1, 2, 4, 8, 16), 0, (0.86, 1.14)),
        ((100, 200, 400, 800, 1600), 48, (0.78, 1.26)),
        ((100, 230, 390, 830, 1580), 0, (0.68, 1.26)),
    ],
    ids=["whole", "noise", "scatter"],
)
def test_the_exponents_that_an_error_of_the_peaks_admits(
    peaks: tuple[int, ...], noise: int, exponents: tuple[float, float]
) -> None:
    assert fit(list(peaks), (1, 2, 4, 8, 16), noise=noise).exponents == exponents
