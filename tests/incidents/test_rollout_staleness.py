"""The staleness manager: its formula by hand, its shares, its modifiers, and threads that take the same places."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck_incidents.rollout_executor.staleness import Limits, RolloutStats, StalenessManager, free_places

HUGE = 1 << 40


@pytest.mark.parametrize(
    ("limits", "stats", "version", "places"),
    [
        (Limits(64, HUGE), RolloutStats(running=60, accepted=1000), 0, 4),
        (Limits(64, HUGE), RolloutStats(running=70), 0, -6),
        (Limits(0, HUGE), RolloutStats(), 0, 1),
        (Limits(HUGE, 64, 1), RolloutStats(), 3, 320),
        (Limits(HUGE, 64, 0), RolloutStats(running=10, accepted=50, rejected=500), 0, 4),
        (Limits(HUGE, 64, 0), RolloutStats(accepted=65), 0, -1),
    ],
)
def test_each_cap_alone(limits: Limits, stats: RolloutStats, version: int, places: int) -> None:
    assert free_places(limits, stats, version) == places


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 200))
def test_shares_add_up_to_the_whole_or_lose_less_than_a_rank_each(concurrent: int, batch: int, world: int) -> None:
    share = Limits(concurrent, batch, 2).share(world)
    assert share.staleness == 2
    for whole, part in ((concurrent, share.concurrent), (batch, share.batch)):
        assert part >= 1
        assert whole - (world - 1) <= part * world <= max(whole, world)


def test_modifiers_are_asked_in_turn_and_told_of_all() -> None:
    seen: list[tuple[int, RolloutStats, int]] = []

    def halve(places: int, stats: RolloutStats, version: int) -> int:
        seen.append((places, stats, version))
        return places // 2

    manager = StalenessManager(Limits(10, HUGE), lambda: 7)
    manager.register(halve)
    manager.register(lambda places, _stats, _version: places - 2)
    manager.enqueue()
    assert manager.capacity == 3
    assert seen == [(10, RolloutStats(enqueued=1), 7)]


def test_threads_take_no_place_twice() -> None:
    """More threads than places, all at once, and a modifier that lets others run between the asking and the taking."""
    begin, never = threading.Barrier(16), threading.Event()

    def modifier(places: int, _stats: RolloutStats, _version: int) -> int:
        never.wait(0.0005)
        return places

    manager = StalenessManager(Limits(5, HUGE), lambda: 0)
    manager.register(modifier)
    for _ in range(16):
        manager.enqueue()
    got: list[bool] = []

    def take() -> None:
        begin.wait()
        got.append(manager.submit())

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(got) == 5
    assert manager.stats == RolloutStats(enqueued=11, running=5)
