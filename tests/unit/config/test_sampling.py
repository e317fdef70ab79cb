"""Which tests a sample takes, and which a time suffices for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_leakcheck.config.sampling import (
    Cost,
    Forecast,
    Sample,
    TimePlan,
    choose_case,
    format_duration,
    parse_duration,
    parse_sample,
)
from pytest_leakcheck.model import InputError

TESTS = [f"tests/test_{file}.py::test_{number}" for file in "abc" for number in range(100)]


def test_ten_turns_judge_each_test_once() -> None:
    samples = [parse_sample(f"1/10@{turn}") for turn in range(37, 47)]
    assert {sum(sample.takes(test) for sample in samples) for test in TESTS} == {1}
    assert all(15 <= sum(map(sample.takes, TESTS)) <= 45 for sample in samples)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 10**6))
def test_successive_turns_cover_all_tests(taken: int, parts: int, turn: int) -> None:
    taken = min(taken, parts)
    turns = -(-parts // taken)
    samples = [Sample(taken, parts, turn + number) for number in range(turns)]
    assert all(any(sample.takes(test) for sample in samples) for test in TESTS[:20])


def test_by_default_the_turn_is_the_day() -> None:
    assert parse_sample("2/10").turn > 730_000
    assert (parse_sample("2/10").taken, parse_sample("2/10").parts) == (2, 10)


@pytest.mark.parametrize(
    "text", ["", "10", "0/10", "3/2", "1/10@", "1/10@x", "-1/3", "1/0", f"1/1{'0' * 5000}", f"1/10@{'1' * 5000}"]
)
def test_a_wrong_share_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="share"):
        parse_sample(text)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10min", 600), ("1.5h", 5400), ("2 min", 120)])
def test_a_duration_has_a_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "ten", "10 minutes", "-3s"])
def test_a_wrong_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"such as 90s, 10min or 1\.5h"):
        parse_duration(text)


def test_one_case_stands_for_all_in_any_order() -> None:
    cases = [f"test_it.py::test_it[{number}]" for number in range(20)]
    assert choose_case(cases) == choose_case(cases[::-1])
    assert choose_case(cases[:1]) == cases[0]


def test_a_time_is_for_new_red_and_long_unmeasured_tests_first() -> None:
    costs = {
        "old": Cost(10, 100, red=False),
        "older": Cost(10, 50, red=False),
        "red": Cost(10, 200, red=True),
        "last": Cost(10, 300, red=False),
    }
    tests = ["last", "old", "new", "older", "red"]
    # A new one counts as much as the median of the others.
    assert TimePlan(tests, costs, 20).chosen == {"new", "red"}
    assert TimePlan(tests, costs, 10, workers=2).chosen == {"new", "red"}
    assert TimePlan(tests, costs, 30).chosen == {"new", "red", "older"}
    assert TimePlan(tests, costs, 1000).chosen == set(tests)
    # Where nothing is known yet, the time itself decides.
    plan = TimePlan(tests, {}, 1)
    assert plan.chosen == set(tests)
    assert (plan.allows("last", 0.9), plan.allows("old", 1.0)) == (True, False)


def test_others_leave_time_for_the_urgent_ones_that_follow() -> None:
    costs = {"first": Cost(10, 100, red=False), "second": Cost(10, 50, red=False)}
    plan = TimePlan(["first", "new", "second"], costs, 50)
    # It and the new one may take twice the 10 s of earlier sessions.
    assert (plan.allows("first", 9.9), plan.allows("first", 10.0)) == (True, False)
    assert plan.allows("new", 49)
    assert plan.allows("second", 49)


def test_what_is_known_is_added_and_the_rest_counts_as_the_median() -> None:
    forecast = Forecast(["a", "b", "c", "d"], {"a": 1.0, "b": 3.0, "c": 20.0, "gone": 99.0})
    assert forecast.tests == 4
    assert [forecast.may_take("c", seconds) for seconds in (20, 21)] == [True, False]
    assert forecast.may_take("d", 1e9)
    assert forecast.seconds_left() == 1 + 3 + 20 + 3
    # A test that takes longer than expected has no seconds left, and takes none from the others.
    assert forecast.seconds_left("c", 5.0) == 22
    assert forecast.seconds_left("c", 50.0) == 7
    forecast.end("c", 50.0)
    forecast.end("elsewhere", 1.0)
    assert (forecast.done, forecast.seconds_left()) == (1, 7)


def test_without_an_earlier_session_this_one_counts() -> None:
    forecast = Forecast(["a", "b", "c"], {})
    assert forecast.seconds_left() is None
    forecast.end("a", 4.0)
    assert forecast.seconds_left() == 8
    # One of three is too little to say how long all take.
    assert Forecast(["a", "b", "c"], {"a": 1.0}).seconds_left() is None
    assert Forecast([], {}).seconds_left() is None


def test_tests_come_and_go() -> None:
    forecast = Forecast(["a"], {})
    for name in ("b", "c", "d"):
        forecast.add(name)
    forecast.drop("d")
    forecast.drop("elsewhere")
    forecast.end("a", 4.0)
    assert (forecast.tests, forecast.done, forecast.spent, forecast.seconds_left()) == (3, 1, 4.0, 8.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99.4, "99 s"), (100, "2 min"), (2460, "41 min"), (9000, "2.5 h")]
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
