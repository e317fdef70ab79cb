"""Verdicts where child processes have a part: their garbage collectors are not watched, and show in the shape alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from walks import budget, walk


def teeth(rise: int, kept: int = 0) -> Callable[[int], int]:
    """Two children make things by turns; the first releases all of its own every 4th time, the second every 5th."""
    return lambda i: 30 + rise * ((i // 2) % 4 + ((i + 1) // 2) % 5) + kept * i


@pytest.mark.parametrize("rise", [1, 9])
def test_what_children_let_go_of_at_once_is_inconclusive_with_its_rise(rise: int) -> None:
    verdict = walk(budget("fd", 0), teeth(rise), elsewhere=True)
    assert (verdict.outcome, verdict.slope) == ("inconclusive", rise)
    assert verdict.reason.startswith(f"+{rise}.0/iter, and occasionally ")
    assert verdict.reason.endswith(" are released at once, by a child or its garbage collector")
    # Growth that is the smaller part of it does not make it a leak of that little.
    assert walk(budget("fd", 0), teeth(9, kept=1), elsewhere=True).slope == 10


def test_a_level_that_holds_all_of_it_is_ok_and_so_is_what_may_stay_unclosed() -> None:
    assert walk(budget("fd", 9 * 7), teeth(9), elsewhere=True).outcome == "ok"
    assert walk(budget("fd", 9 * 6), teeth(9), elsewhere=True).outcome == "inconclusive"
    assert walk(budget("fd", unclosed="allow"), teeth(9), elsewhere=True).outcome == "ok"


def test_in_one_process_it_is_the_test_that_lets_go() -> None:
    assert walk(budget("fd"), teeth(9)).outcome == "ok"


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param(lambda _: 30, id="still"),
        pytest.param(lambda i: 30 + i % 2, id="by turns"),
        pytest.param(lambda i: 30 + (i % 7 == 0), id="seldom"),
        pytest.param(lambda i: 30 + 5 * (i % 3 == 0), id="spikes"),
    ],
)
def test_what_is_closed_each_time_is_ok(reading: Callable[[int], int]) -> None:
    assert walk(budget("fd"), reading, elsewhere=True).outcome == "ok"


def test_a_leak_in_a_child_is_a_leak() -> None:
    verdict = walk(budget("fd", 0), lambda i: 30 + 9 * i, elsewhere=True)
    assert (verdict.outcome, verdict.slope, verdict.iterations) == ("leak", 9.0, 17)
