"""What a watch may cost: dear work waits until it is saved up, and a table takes what samples leave."""

from __future__ import annotations

from itertools import pairwise

from pytest_leakcheck.watch.allowance import Allowance
from pytest_leakcheck.watch.events import Began
from pytest_leakcheck.watch.history import History
from pytest_leakcheck.watch.table import Table

HISTORY = History(Began(0.0, 1, "a training", 1.0))


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = self.spent = 0.0

    def work(self, seconds: float) -> None:
        self.spent += seconds


def test_dear_work_takes_its_share() -> None:
    clock = Clock()
    allowance = Allowance(0.01, 0.0, lambda: clock.now, lambda: clock.spent)
    for second in range(1000):
        clock.now = float(second)
        if allowance.due:
            allowance.do(lambda: clock.work(0.1))
    # The first time is free, then one in ten seconds.
    assert 9.5 <= clock.spent <= 10.2


def test_credit_is_for_the_beginning() -> None:
    clock = Clock()
    allowance = Allowance(0.001, 0.5, lambda: clock.now, lambda: clock.spent)
    done = []
    for second in range(100):
        clock.now = float(second)
        if allowance.due:
            allowance.do(lambda: clock.work(0.1))
            done.append(second)
    assert done == [0, 1, 2, 3, 4]


def drawn_at(sample: float, refresh: float | None = None, seconds: int = 600) -> tuple[list[int], float]:
    """When a table of 12 ms is redrawn beside samples of so many seconds, one per second; and what all of it took."""
    clock = Clock()
    times: list[int] = []

    def draw(_history: History) -> None:
        clock.work(0.012)
        times.append(int(clock.now))

    table = Table(draw, refresh, lambda: clock.now, lambda: clock.spent)
    for second in range(seconds):
        clock.now = float(second)
        clock.work(sample)
        table.show(HISTORY)
    return times, clock.spent / seconds


def test_a_table_takes_what_the_samples_leave() -> None:
    few, of_few = drawn_at(0.0001)
    many, of_many = drawn_at(0.0007)
    assert len(few) > 2 * len(many) > 20
    # The credit of the beginning is in it as well.
    assert 0.0009 < of_few < 0.0011
    assert 0.0009 < of_many < 0.0011


def test_it_is_redrawn_every_two_minutes_where_they_leave_nothing() -> None:
    times, _ = drawn_at(0.002, seconds=1200)
    late = [time for time in times if time > 120]
    assert all(after - before == 120 for before, after in pairwise(late))
    assert len(late) >= 8


def test_or_as_it_is_asked_for() -> None:
    times, _ = drawn_at(0.002, refresh=5.0, seconds=60)
    assert times == list(range(0, 60, 5))
