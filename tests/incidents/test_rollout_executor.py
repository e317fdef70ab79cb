"""The executor of incident 4 and its staleness manager: what begins, how errors reach the caller, that it ends whole."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakcheck_incidents.rollout_executor import fixed
from leakcheck_incidents.rollout_executor.executor import BackgroundError, RolloutExecutor
from leakcheck_incidents.rollout_executor.rollouts import PATIENCE, Endless, until
from leakcheck_incidents.rollout_executor.staleness import RolloutConfig, RolloutStats, StalenessManager, free_places

HUGE = 1 << 40


def running() -> tuple[set[threading.Thread], list[str]]:
    """The threads, and the numbers of the open descriptors."""
    return set(threading.enumerate()), sorted(one.name for one in Path("/proc/self/fd").iterdir())


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    # What earlier tests of this process have left to the collector may not go during the test.
    gc.collect()
    before = running()
    yield
    assert running() == before


def executor_of(config: RolloutConfig) -> RolloutExecutor[Any]:
    """One that has begun, in a world of one."""
    return fixed.InferenceEngine(config).initialize(1)


def stats_of(executor: RolloutExecutor[Any]) -> RolloutStats:
    assert executor.manager is not None
    return executor.manager.stats


def giving(value: int | None) -> Callable[[], Any]:
    async def workflow() -> int | None:
        await asyncio.sleep(0)
        return value

    return workflow


def raising(error: BaseException) -> Callable[[], Any]:
    async def workflow() -> int:
        await asyncio.sleep(0)
        raise error

    return workflow


def test_what_gives_nothing_or_is_cancelled_is_rejected_and_makes_room() -> None:
    with executor_of(RolloutConfig(1, 1)) as executor:
        for workflow in (giving(None), raising(asyncio.CancelledError()), giving(3)):
            executor.submit(workflow)
        assert executor.wait(1, PATIENCE) == [3]
        assert stats_of(executor) == RolloutStats(accepted=1, rejected=2)
        with pytest.raises(TimeoutError, match="fewer than 1 rollouts have ended"):
            executor.wait(1, timeout=0.01)


@pytest.mark.parametrize(
    ("config", "most"), [(RolloutConfig(3, HUGE), 3), (RolloutConfig(HUGE, 4), 4), (RolloutConfig(5, 2, 1), 4)]
)
def test_each_cap_holds_it(config: RolloutConfig, most: int) -> None:
    endless = Endless()
    with executor_of(config) as executor:
        for _ in range(20):
            executor.submit(endless)
        executor.wait_saturated(PATIENCE)
        endless.wait_for(most)
    assert (endless.running, endless.running_most) == (0, most)
    assert stats_of(executor) == RolloutStats(rejected=most)


@pytest.mark.parametrize("error", [LookupError("in a workflow"), SystemExit(3)])
def test_an_error_is_raised_on_the_callers_thread(error: BaseException) -> None:
    with executor_of(RolloutConfig(3, HUGE)) as executor:
        executor.submit(Endless())
        executor.submit(raising(error))
        for call in (lambda: executor.wait(1, PATIENCE), lambda: executor.submit(giving(1))):
            with pytest.raises(BackgroundError, match=type(error).__name__) as caught:
                call()
            assert caught.value.__cause__ is error


def test_an_error_that_nobody_has_heard_of_is_raised_at_the_end_once() -> None:
    executor = executor_of(RolloutConfig(1, 1))
    executor.submit(raising(LookupError("unheard")))
    until(lambda: stats_of(executor).rejected == 1)
    with pytest.raises(BackgroundError, match="LookupError: unheard"):
        executor.shutdown()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(giving(1))


def test_nothing_that_ended_is_kept_alive() -> None:
    """No thread's last variable, no queue and no exception holds on to a workflow or its data while all are idle."""

    class Data:
        pass

    class Workflow:
        async def __call__(self) -> Data:
            return Data()

    with executor_of(RolloutConfig(1, HUGE)) as executor:
        workflow = Workflow()
        executor.submit(workflow)
        data = executor.wait(1, PATIENCE)
        gone: list[Callable[[], object]] = [weakref.ref(workflow), weakref.ref(data[0])]
        del workflow, data
        until(lambda: not any(one() for one in gone))


def test_the_factory_registers_modifiers_with_either_manager() -> None:
    config = RolloutConfig(64, 64)
    engine = fixed.InferenceEngine(config, [lambda places, _stats, _version: places - 6])
    for manager in (None, StalenessManager(config.share(4), engine.get_version)):
        with fixed.create_workflow_executor(engine, config, manager, 4) as executor:
            assert executor.manager is not None
            assert executor.manager.capacity == 10


@pytest.mark.parametrize("given", [None, StalenessManager(RolloutConfig(1), lambda: 0)], ids=["none", "a manager"])
def test_one_that_is_not_initialized_says_so_and_does_not_wait_for_ever(given: StalenessManager | None) -> None:
    executor: RolloutExecutor[int] = RolloutExecutor(RolloutConfig(1), lambda: 0, given)
    calls: list[Callable[[], object]] = [
        lambda: executor.submit(giving(1)),
        lambda: executor.wait(1),
        executor.wait_saturated,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"not initialized: .* before initialize\(\) is called"):
            call()
    executor.shutdown()


def test_the_concurrency_limit_falls_back_to_the_batch_size_before_both_are_divided() -> None:
    for unset in (None, 0):
        config = RolloutConfig(unset, 64)
        assert config.concurrent == 64
        assert config.share(4) == RolloutConfig(16, 16)
    assert RolloutConfig().concurrent == 1


@pytest.mark.parametrize(
    ("config", "stats", "version", "places"),
    [
        (RolloutConfig(64, HUGE), RolloutStats(running=60, accepted=1000), 0, 4),
        (RolloutConfig(64, HUGE), RolloutStats(running=70), 0, -6),
        (RolloutConfig(0, 0), RolloutStats(), 0, 1),
        (RolloutConfig(HUGE, 64, 1), RolloutStats(), 3, 320),
        (RolloutConfig(HUGE, 64, 0), RolloutStats(running=10, accepted=50, rejected=500), 0, 4),
        (RolloutConfig(HUGE, 64, 0), RolloutStats(accepted=65), 0, -1),
    ],
)
def test_each_cap_alone(config: RolloutConfig, stats: RolloutStats, version: int, places: int) -> None:
    assert free_places(config, stats, version) == places


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 200))
def test_shares_add_up_to_the_whole_or_lose_less_than_a_rank_each(concurrent: int, batch: int, world: int) -> None:
    share = RolloutConfig(concurrent, batch, 2).share(world)
    assert share.max_head_offpolicyness == 2
    for whole, part in ((concurrent, share.concurrent), (batch, share.consumer_batch_size)):
        assert part >= 1
        assert whole - (world - 1) <= part * world <= max(whole, world)


def test_modifiers_are_asked_in_turn_and_told_of_all() -> None:
    seen: list[tuple[int, RolloutStats, int]] = []

    def halve(places: int, stats: RolloutStats, version: int) -> int:
        seen.append((places, stats, version))
        return places // 2

    manager = StalenessManager(RolloutConfig(10, HUGE), lambda: 7)
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

    manager = StalenessManager(RolloutConfig(5, HUGE), lambda: 0)
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
