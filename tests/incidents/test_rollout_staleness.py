"""The staleness manager: its formula by hand, against a plain model over random traces, and among threads."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import FrozenInstanceError, asdict
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leakcheck_incidents.rollout_executor.staleness import Limits, RolloutStats, StalenessManager, free_places

HUGE = 1 << 40
limits = st.builds(Limits, concurrent=st.integers(-1, 12), batch=st.integers(-1, 8), staleness=st.integers(0, 3))
EVENTS = ("enqueue", "withdraw", "submit", "accept", "reject", "version", "recover")
# A rollout ends after three steps in their order, which single ones at random seldom come to.
LIVES = (("enqueue", "submit", "accept"), ("enqueue", "submit", "reject"), *((event,) for event in EVENTS))


class Model:
    """The rules in words, counted one by one: a rollout is a word in a list."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.version = 0
        self.life: Counter[str] = Counter()

    def admits(self, more: int) -> bool:
        """Whether both caps hold with so many more at once."""
        running = self.life["running"] + more
        data = self.life["accepted"] + running
        batches = self.limits.staleness + self.version + 1
        return running <= max(1, self.limits.concurrent) and data <= batches * max(1, self.limits.batch)

    @property
    def capacity(self) -> int:
        """The most that both caps admit; from far above downwards."""
        return next(more for more in count(max(1, self.limits.concurrent), -1) if self.admits(more))

    def can(self, event: str) -> bool:
        needs = {"withdraw": "enqueued", "submit": "enqueued", "accept": "running", "reject": "running"}
        return event not in needs or self.life[needs[event]] > 0

    def do(self, event: str, version: int) -> None:
        moves = {
            "enqueue": (None, "enqueued"),
            "withdraw": ("enqueued", None),
            "submit": ("enqueued", "running"),
            "accept": ("running", "accepted"),
            "reject": ("running", "rejected"),
        }
        if event in moves:
            was, becomes = moves[event]
            if was:
                self.life[was] -= 1
            if becomes:
                self.life[becomes] += 1
        elif event == "version":
            self.version += 1
        else:
            self.version = version
            self.life["accepted"] = version * max(1, self.limits.batch)

    @property
    def stats(self) -> RolloutStats:
        return RolloutStats(*(self.life[word] for word in ("enqueued", "running", "accepted", "rejected")))


class Pair:
    """A manager and the model of it, that the same things happen to."""

    def __init__(self, limits: Limits) -> None:
        self.model = Model(limits)
        self.version = 0
        self.manager = StalenessManager(limits, lambda: self.version)

    def do(self, event: str, version: int = 0) -> None:
        self.model.do(event, version)
        if event == "version":
            self.version += 1
        elif event == "recover":
            self.version = version
            self.manager.recover(version)
        else:
            getattr(self.manager, event)()

    def submit(self, places: int) -> None:
        """One that waits begins if there are places, and else does not."""
        assert self.manager.submit() == (places > 0)
        if places > 0:
            self.model.do("submit", 0)

    def agree(self) -> None:
        assert self.manager.stats == self.model.stats
        assert self.manager.capacity == self.model.capacity


@given(limits, st.lists(st.tuples(st.sampled_from(LIVES), st.integers(0, 5)), max_size=40))
def test_over_random_traces_it_agrees_with_the_model(limits: Limits, trace: list[tuple[tuple[str, ...], int]]) -> None:
    pair = Pair(limits)
    for event, version in ((event, version) for life, version in trace for event in life):
        before = pair.manager.stats
        if event == "submit" and (pair.model.can(event) or not pair.model.admits(1)):
            pair.submit(pair.model.capacity)
        elif event != "submit" and pair.model.can(event):
            pair.do(event, version)
        else:
            # What cannot have happened is refused, and changes nothing.
            with pytest.raises(ValueError, match="below 0"):
                getattr(pair.manager, event)()
            assert pair.manager.stats is before
        pair.agree()


class ManagerMachine(RuleBasedStateMachine):
    """Steps that build on each other, so that caps are reached and left; with modifiers and a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(Limits(concurrent=4, batch=3, staleness=1))
        self.paused = False
        self.withheld = 0
        self.pair.manager.register(lambda places, _stats, _version: places - self.withheld)
        # What is paused has no places; registered later, so it has the last word.
        self.pair.manager.register(lambda places, _stats, _version: min(0, places) if self.paused else places)

    @property
    def places(self) -> int:
        places = self.pair.model.capacity - self.withheld
        return min(0, places) if self.paused else places

    @rule(count=st.integers(1, 4))
    def enqueue(self, count: int) -> None:
        for _ in range(count):
            self.pair.do("enqueue")

    @precondition(lambda self: self.pair.model.life["enqueued"])
    @rule()
    def submit(self) -> None:
        self.pair.submit(self.places)

    @precondition(lambda self: self.pair.model.life["enqueued"])
    @rule()
    def submit_all(self) -> None:
        while self.pair.model.life["enqueued"] and self.places > 0:
            self.pair.submit(self.places)

    @precondition(lambda self: self.pair.model.life["running"])
    @rule(event=st.sampled_from(["accept", "reject"]))
    def end(self, event: str) -> None:
        self.pair.do(event)

    @rule()
    def bump(self) -> None:
        self.pair.do("version")

    @rule(version=st.integers(0, 6))
    def recover(self, version: int) -> None:
        self.pair.do("recover", version)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.paused = paused

    @rule(withheld=st.integers(-2, 5))
    def withhold(self, withheld: int) -> None:
        self.withheld = withheld

    @invariant()
    def agrees(self) -> None:
        assert self.pair.manager.stats == self.pair.model.stats
        assert self.pair.manager.capacity == self.places


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("limits", "stats", "version", "places"),
    [
        (Limits(64, HUGE), RolloutStats(), 0, 64),
        (Limits(64, HUGE), RolloutStats(running=60), 0, 4),
        (Limits(64, HUGE), RolloutStats(accepted=1000), 0, 64),
        (Limits(64, HUGE), RolloutStats(running=70), 0, -6),
        (Limits(0, HUGE), RolloutStats(), 0, 1),
    ],
)
def test_the_concurrency_cap_alone(limits: Limits, stats: RolloutStats, version: int, places: int) -> None:
    assert free_places(limits, stats, version) == places


@pytest.mark.parametrize(
    ("limits", "stats", "version", "places"),
    [
        (Limits(HUGE, 64, 0), RolloutStats(), 0, 64),
        (Limits(HUGE, 64, 1), RolloutStats(), 0, 128),
        (Limits(HUGE, 64, 0), RolloutStats(), 3, 256),
        (Limits(HUGE, 64, 0), RolloutStats(running=10, accepted=50), 0, 4),
        (Limits(HUGE, 64, 0), RolloutStats(running=10, rejected=500), 0, 54),
        (Limits(HUGE, 64, 0), RolloutStats(accepted=65), 0, -1),
        (Limits(HUGE, 0, 2), RolloutStats(), 0, 3),
    ],
)
def test_the_staleness_cap_alone(limits: Limits, stats: RolloutStats, version: int, places: int) -> None:
    assert free_places(limits, stats, version) == places


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 200))
def test_shares_add_up_to_the_whole_or_lose_less_than_a_rank_each(concurrent: int, batch: int, world: int) -> None:
    share = Limits(concurrent, batch, 2).share(world)
    assert share.staleness == 2
    for whole, part in ((concurrent, share.concurrent), (batch, share.batch)):
        assert part >= 1
        assert whole - (world - 1) <= part * world <= max(whole, world)


@pytest.mark.parametrize("world", [0, -1])
def test_a_world_without_ranks_is_refused(world: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Limits(64, 64).share(world)


def test_a_snapshot_does_not_change() -> None:
    manager = StalenessManager(Limits(2, 2), lambda: 0)
    manager.enqueue()
    before = manager.stats
    manager.submit()
    assert before == RolloutStats(enqueued=1)
    assert manager.stats == RolloutStats(running=1)
    with pytest.raises(FrozenInstanceError):
        before.running = 5  # type: ignore[misc]


def test_after_a_recovery_no_more_begin_than_before() -> None:
    version = 0
    manager = StalenessManager(Limits(HUGE, 8, 1), lambda: version)
    assert manager.capacity == 16
    version = 100
    assert manager.capacity == 816
    manager.recover(100)
    assert manager.capacity == 16
    assert asdict(manager.stats) == {"enqueued": 0, "running": 0, "accepted": 800, "rejected": 0}
    assert manager.stats.submitted == 800
    with pytest.raises(ValueError, match="at least 0"):
        manager.recover(-1)


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
    begin = threading.Barrier(16)
    never = threading.Event()

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


def test_threads_lose_no_count() -> None:
    manager = StalenessManager(Limits(HUGE, HUGE), lambda: 0)
    begin = threading.Barrier(8)
    uneven: list[RolloutStats] = []

    def live(accepted: bool) -> None:
        begin.wait()
        for _ in range(200):
            manager.enqueue()
            manager.submit()
            stats = manager.stats
            if not 1 <= stats.enqueued + stats.running <= 8:
                uneven.append(stats)
            (manager.accept if accepted else manager.reject)()

    threads = [threading.Thread(target=live, args=(number % 2 == 0,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not uneven
    assert manager.stats == RolloutStats(accepted=800, rejected=800)
