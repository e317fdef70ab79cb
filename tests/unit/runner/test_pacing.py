"""How often an expensive counter is read and all garbage collected, and that after a rise every row is read."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.probes.garbage_collector import CollectorWatch
from pytest_leakcheck.runner.readings import CollectionPace, Pace
from repeats import Clock, verdict_on

US = 1e-6


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


def test_once_it_stands_still_it_is_read_rarely_again(monkeypatch: pytest.MonkeyPatch) -> None:
    column, read_at = run(monkeypatch, lambda row: min(row, 80), cost=60 * US, iteration=0.0, rows=400)
    assert len([row for row in read_at if row > 80 + 40]) < 10
    assert column[400] == 80


class Collector:
    """Stands for the watch on the collector: notes in which rows it collects all garbage, which takes some time."""

    def __init__(self, clock: Clock, cost: float) -> None:
        self.clock, self.cost = clock, cost
        self.row = 0
        self.full: list[int] = []

    def collect(self) -> int:
        self.full.append(self.row)
        self.clock.now += self.cost
        return 1

    def collect_young(self) -> int:
        return 0


def rows_with_full_collections(
    monkeypatch: pytest.MonkeyPatch, *, objects: int, cost: float = 0.048, look: int = 0, rows: int = 30
) -> list[int]:
    """Return the rows in which all garbage is collected, under iterations of 20 ms."""
    collector = Collector(Clock(monkeypatch), cost)
    pace = CollectionPace(cast("CollectorWatch", collector))
    for row in range(rows):
        collector.clock.now += 0.02
        collector.row = row
        pace.collect(row, objects, whole=row == look)
    return collector.full


def test_many_objects_are_walked_for_half_the_time_of_the_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_with_full_collections(monkeypatch, objects=20_001) == [0, 1, 6, 11, 16, 21, 26]
    assert rows_with_full_collections(monkeypatch, objects=20_001, cost=0.009) == list(range(30))
    assert rows_with_full_collections(monkeypatch, objects=20_001, cost=9.0, rows=200) == [0, 1, 65, 129, 193]


def test_a_look_has_all_garbage_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_with_full_collections(monkeypatch, objects=20_001, look=8) == [0, 1, 6, 8, 13, 18, 23, 28]


@pytest.mark.laboratory
def test_a_leak_of_many_objects_is_found_while_old_garbage_waits() -> None:
    """Cycles that die young are collected in each row, and those that die old are no leak."""
    kept: list[object] = []
    window: deque[list[object]] = deque(maxlen=3)

    def work() -> None:
        cycle: list[object] = []
        cycle.append(cycle)
        window.append(cycle)
        if not fixed:
            kept.extend([] for _ in range(1400))

    fixed = False
    verdict = verdict_on(work, Budget("object"))
    assert (verdict.outcome, round(verdict.slope)) == ("leak", 1400)
    kept.clear()
    fixed = True
    assert verdict_on(work, Budget("object")).outcome == "ok"
