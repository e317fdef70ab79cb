from __future__ import annotations

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.judge.growth import ALPHA, detect_sawtooth, growth, is_steady, looks

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


def test_looks_grow_by_a_quarter_and_end_at_the_last() -> None:
    assert list(looks(287)) == [10, 13, 17, 22, 28, 36, 46, 58, 73, 92, 116, 146, 183, 229, 287]
    assert list(looks(50)) == [10, 13, 17, 22, 28, 36, 46, 50]
    assert list(looks(5)) == [5]
    assert list(looks(10)) == [10]


def test_fewer_than_five_readings_say_nothing() -> None:
    assert growth((0, 1, 2, 3)).state == "undecided"
    assert growth((5, 5)).state == "undecided"


def test_a_line_grows_by_its_slope() -> None:
    found = growth(tuple(range(0, 54, 3)), exact=True)
    assert (found.state, found.slope, found.earlier) == ("growing", 3.0, 3.0)


def test_a_line_is_not_called_before_the_first_look_that_may_call_it() -> None:
    line = tuple(range(40))
    assert growth(line[:16], first_look=16).state == "undecided"
    assert growth(line[:18], first_look=16).state == "growing"


def test_what_is_tolerated_is_a_line_of_its_own_and_stands_in_the_slope() -> None:
    line = tuple(range(0, 51 * 16, 16))
    assert growth(line, tolerance=16.0).state == "flat"
    assert growth(line, tolerance=15.0).state == "growing"
    assert growth(line, tolerance=15.0).slope == pytest.approx(16.0)


def test_a_step_is_flat_only_after_4_6_of_its_gaps() -> None:
    # One step at iteration 8: the mean gap is 8, and 4.6 of them end at iteration 45.
    step = [int(i >= 8) for i in range(60)]
    assert growth(step[:45], exact=True).state == "undecided"
    found = growth(step[:46], exact=True)
    assert (found.state, found.slope, found.steps, found.quiet) == ("flat", 0.0, (8,), 37)


def test_a_rise_in_the_last_reading_is_a_step_of_an_exact_counter_and_an_edge_of_a_noisy_one() -> None:
    readings = (*(5 for _ in range(40)), 6)
    assert growth(readings, exact=True).steps == (40,)
    assert growth(readings).steps == ()


def test_decay_is_not_growth() -> None:
    filled = list(accumulate((1000 // (i + 1) for i in range(100)), initial=0))
    assert growth(filled).state != "growing"
    assert growth([1000 * i for i in range(101)]).state == "growing"


def test_growth_that_has_ended_is_not_growth() -> None:
    # The last quarter of the second half stands still.
    ended = [min(i, 85) for i in range(101)]
    assert growth(ended).state == "undecided"
    assert growth(list(range(101))).state == "growing"


def test_growth_shows_through_a_sawtooth() -> None:
    saw = [i % 5 * 10 for i in range(101)]
    assert growth(saw).state == "flat"
    assert growth([value + 20 * i for i, value in enumerate(saw)]).state == "growing"


def test_noise_without_a_trend_is_called_growing_less_often_than_alpha() -> None:
    called = 0
    for seed in range(150):
        source = random.Random(seed)
        readings = [source.randrange(1000) for _ in range(93)]
        called += any(growth(readings[: at + 1]).state == "growing" for at in looks(92))
    # ALPHA promises one in a thousand; among 150 even one would be a surprise.
    assert called == 0
    assert ALPHA == 0.001


@PROPERTY
@given(st.lists(st.integers(0, 100), min_size=5, max_size=80), st.integers(2, 50))
def test_the_state_does_not_depend_on_the_unit(readings: list[int], factor: int) -> None:
    assert growth(readings).state == growth([value * factor for value in readings]).state


def test_something_large_that_is_freed_once_does_not_hide_a_leak() -> None:
    """As a leak of 48 bytes per iteration in GEOS was hidden: at the very look, the interpreter gave back 2,640."""
    leaking = [1488 + 48 * i for i in range(73)]
    assert growth([*leaking, 1056], tolerance=16.0).state == "undecided"
    # It goes on from there.
    later = [1056 + 48 * i for i in range(1, 230)]
    assert growth([*leaking, 1056, *later], tolerance=16.0).state == "growing"
    # The same fall is flat where it has held, and where it is a habit.
    assert growth([*leaking[:58], *[1056] * 16], tolerance=16.0).state == "flat"
    assert growth([1000 + 48 * (i % 20) for i in range(74)], tolerance=16.0).state == "flat"


@pytest.mark.parametrize(
    ("rises", "expected"),
    [
        ([40] * 6, True),
        ([40, 49, 45, 40, 41, 42], True),
        ([40] * 5, False),
        ([40, 40, 40, 51, 40, 40], False),
        ([40, 40, 40, 0, 40, 40, 40], False),
        ([2] * 6, False),
        ([-40] * 6, False),
    ],
)
def test_six_rises_by_about_the_same_amount_beyond_what_is_tolerated_are_growth_if_none_can_follow(
    rises: list[int], expected: bool
) -> None:
    readings = [*accumulate(rises, initial=7)]
    found = growth(readings, 2.0, stopped=True)
    assert (found.state == "growing") is expected
    assert not expected or found.slope == pytest.approx(41, abs=3)
    assert growth(readings, 2.0).state != "growing"


@pytest.mark.parametrize("first_fall", range(1, 200, 7))
def test_a_counter_that_falls_to_where_it_began_does_not_grow(first_fall: int) -> None:
    """As the references of a sqlite3 connection to its cursors, which it removes each time that it has made 200."""
    readings = [(one - first_fall) % 200 for one in range(600)]
    assert {growth(readings[: n + 1], exact=True).state for n in looks(599) if n >= 287} <= {"flat", "undecided"}
    leaking = [reading + 2 * at for at, reading in enumerate(readings)]
    states = [growth(leaking[: n + 1], exact=True).state for n in looks(599) if n >= 287]
    assert "growing" in states


@pytest.mark.parametrize(
    ("late", "steady"),
    [([10] * 20, True), ([10, 10, 0, 10, 0] * 4, False), ([10, 0] + [10] * 18, True), ([6] * 20, False)],
)
def test_a_steady_series_rises_in_nine_of_ten_iterations_and_keeps_nine_tenths_of_its_rate(
    late: list[int], *, steady: bool
) -> None:
    assert is_steady(list(accumulate([10] * 20 + late, initial=0))) is steady


@pytest.mark.parametrize("falls", [3, 4])
def test_four_falls_make_a_sawtooth(falls: int) -> None:
    teeth = detect_sawtooth(list(accumulate(([1] * 8 + [-8]) * falls, initial=0)))
    assert teeth == ((1, 8.0) if falls == 4 else None)
