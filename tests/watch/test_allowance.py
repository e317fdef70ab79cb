"""What a watch may cost: expensive work waits in proportion to its cost, and so does a table."""

from __future__ import annotations

from pytest_leakcheck.watch.cpu_budget import Allowance
from pytest_leakcheck.watch.events import Began
from pytest_leakcheck.watch.history import History
from pytest_leakcheck.watch.live_table import Table

HISTORY = History(Began(0.0, 1, "a training", 1.0))


class Clock:
    """Time that passes only when a test moves it."""

    def __init__(self) -> None:
        self.now = self.spent = 0.0

    def work(self, seconds: float) -> None:
        self.spent += seconds


def test_expensive_work_takes_its_share() -> None:
    clock = Clock()
    allowance = Allowance(0.01, lambda: clock.now, lambda: clock.spent)
    for second in range(1000):
        clock.now = float(second)
        if allowance.due:
            allowance.do(lambda: clock.work(0.1))
    # The first time is free, then one in ten seconds.
    assert 9.5 <= clock.spent <= 10.2


def drawn_at(cost: float, refresh: float | None = None, seconds: int = 600) -> tuple[list[int], float]:
    """When a table of this cost is redrawn beside one sample per second; and the share of a core that it took."""
    clock = Clock()
    times: list[int] = []

    def draw(_history: History) -> None:
        clock.work(cost)
        times.append(int(clock.now))

    table = Table(draw, refresh, lambda: clock.now, lambda: clock.spent)
    for second in range(seconds):
        clock.now = float(second)
        table.show(HISTORY)
    return times, clock.spent / seconds


def test_a_table_takes_its_share() -> None:
    cheap, of_cheap = drawn_at(0.006)
    expensive, of_expensive = drawn_at(0.012)
    assert len(cheap) > 1.8 * len(expensive) > 50
    assert 0.0009 < of_cheap < 0.0011
    assert 0.0009 < of_expensive < 0.0011


def test_it_is_redrawn_every_two_minutes_however_expensive() -> None:
    times, _ = drawn_at(0.5, seconds=1200)
    assert times == list(range(0, 1200, 120))


def test_or_as_it_is_asked_for() -> None:
    times, _ = drawn_at(0.012, refresh=5.0, seconds=60)
    assert times == list(range(0, 60, 5))
