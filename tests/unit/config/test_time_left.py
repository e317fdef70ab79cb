"""How long the rest of a session takes, from what is known of its tests."""

from __future__ import annotations

import pytest

from pytest_leakcheck.config.sampling import Forecast, format_duration


def test_what_is_known_is_added_and_the_rest_counts_as_the_median() -> None:
    forecast = Forecast(["a", "b", "c", "d"], {"a": 1.0, "b": 3.0, "c": 20.0, "gone": 99.0})
    assert (forecast.tests, forecast.expected("c"), forecast.expected("d"), forecast.expected("gone")) == (4, 20, 0, 0)
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


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (99.4, "99 s"), (100, "2 min"), (2460, "41 min"), (9000, "2.5 h")]
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
