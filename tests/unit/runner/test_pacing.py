"""How often an expensive counter is read, and that after a rise it is read in every row."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from pytest_leakcheck.runner.pacing import Pace

US = 1e-6


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


def run(
    monkeypatch: pytest.MonkeyPatch, value: Callable[[int], int], *, cost: float, iteration: float, rows: int = 200
) -> tuple[list[int], list[int]]:
    """Fill a column from a counter that costs so much, in iterations that take so long.

    Returns:
        The column, and the rows in which the counter was read.
    """
    clock, column, read_at = Clock(monkeypatch), array("q", bytes(8 * (rows + 1))), []

    def read() -> int:
        read_at.append(row)
        clock.now += cost
        return value(row)

    paced = Pace(read, column, array("q", (0,)), tolerance=0.5)
    for row in range(rows + 1):
        if row >= paced.due or row == rows:
            paced.read_into(row)
        clock.now += iteration
    return column.tolist(), read_at


def test_what_costs_nothing_is_read_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    column, read_at = run(monkeypatch, lambda _: 7, cost=0.1 * US, iteration=0.0)
    assert read_at == list(range(201))
    assert column == [7] * 201


@pytest.mark.parametrize(
    ("cost", "iteration", "at_most"),
    [(4 * US, 0.0, 12), (60 * US, 0.0, 6), (20_000 * US, 0.0, 6), (60 * US, 1000 * US, 21), (60 * US, 0.1, 201)],
)
def test_what_is_dear_is_read_as_often_as_it_may_cost(
    monkeypatch: pytest.MonkeyPatch, cost: float, iteration: float, at_most: int
) -> None:
    column, read_at = run(monkeypatch, lambda _: 7, cost=cost, iteration=iteration)
    assert at_most // 2 < len(read_at) <= at_most
    assert {0, 200} <= set(read_at)
    assert column == [7] * 201


def test_a_rise_is_read_in_every_row_from_when_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    column, read_at = run(monkeypatch, lambda row: row, cost=60 * US, iteration=0.0)
    seen = read_at[1]
    assert seen <= 64
    assert read_at[1:] == list(range(seen, 201))
    assert column == [0] * seen + list(range(seen, 201))


def test_a_rise_at_every_tenth_row_is_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    column, read_at = run(monkeypatch, lambda row: 10 * (row // 10), cost=60 * US, iteration=0.0)
    assert read_at[3:] == list(range(read_at[3], 201))
    assert column[100:] == [10 * (row // 10) for row in range(100, 201)]


def test_a_rise_within_the_tolerance_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _column, read_at = run(monkeypatch, lambda row: row // 4, cost=60 * US, iteration=0.0)
    assert len(read_at) < 10


def test_once_it_stands_still_it_is_read_rarely_again(monkeypatch: pytest.MonkeyPatch) -> None:
    column, read_at = run(monkeypatch, lambda row: min(row, 80), cost=60 * US, iteration=0.0, rows=400)
    assert len([row for row in read_at if row > 80 + 40]) < 10
    assert column[400] == 80


def test_the_part_of_the_harness_is_taken_off() -> None:
    column = array("q", (0, 0))
    Pace(lambda: 100, column, array("q", (30,)), tolerance=0.0).read_into(0)
    assert column[0] == 70
