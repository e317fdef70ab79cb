"""The executor: what it lets begin, what it gives back, how errors reach the caller, and that it ends whole."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leakcheck_incidents.rollout_executor import fixed
from leakcheck_incidents.rollout_executor.executor import BackgroundError, WorkflowExecutor
from leakcheck_incidents.rollout_executor.rollouts import PATIENCE, Endless, until
from leakcheck_incidents.rollout_executor.staleness import Limits, RolloutStats, StalenessManager
from rollout_control import HUGE, Broken, Controlled, executor_of, running


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    # What earlier tests of this process have left to the collector may not go during the test.
    gc.collect()
    before = running()
    yield
    assert running() == before


def giving(value: int | None) -> Callable[[], Any]:
    async def workflow() -> int | None:
        await asyncio.sleep(0)
        return value

    return workflow


def test_data_come_in_the_order_in_which_they_ended() -> None:
    with executor_of(Limits(2, HUGE)) as executor:
        first, second = Controlled(), Controlled()
        executor.submit(first)
        executor.submit(second)
        second.end(2)
        assert executor.wait(1, PATIENCE) == [2]
        first.end(1)
        assert executor.wait(1, PATIENCE) == [1]
        assert executor.manager is not None
        assert executor.manager.stats == RolloutStats(accepted=2)


def test_what_gives_nothing_is_rejected_and_makes_room() -> None:
    with executor_of(Limits(1, 1)) as executor:
        for value in (None, None, 3):
            executor.submit(giving(value))
        assert executor.wait(1, PATIENCE) == [3]
        assert executor.manager is not None
        assert executor.manager.stats == RolloutStats(accepted=1, rejected=2)


@pytest.mark.parametrize(("limits", "most"), [(Limits(3, HUGE), 3), (Limits(HUGE, 4), 4), (Limits(5, 2, 1), 4)])
def test_each_cap_holds_it(limits: Limits, most: int) -> None:
    endless = Endless()
    with executor_of(limits, queue_size=64) as executor:
        for _ in range(20):
            executor.submit(endless)
        executor.wait_saturated(PATIENCE)
        endless.wait_for(most)
    assert (endless.running, endless.running_most) == (0, most)


def test_a_new_version_lets_more_begin() -> None:
    endless = Endless()
    version = 0
    with executor_of(Limits(HUGE, 2), lambda: version, queue_size=64) as executor:
        for _ in range(10):
            executor.submit(endless)
        # The executor may be about to read the version when it changes. In one round or another it is asleep.
        for version in range(5):
            endless.wait_for(2 * version + 2)
            executor.wait_saturated(PATIENCE)
            assert endless.running_most == 2 * version + 2
            time.sleep(0.1)


def test_a_pause_holds_what_waits_and_lets_go_on_what_runs() -> None:
    with executor_of(Limits(2, HUGE)) as executor:
        running, waiting = Controlled(), Controlled()
        executor.submit(running)
        assert running.began.wait(PATIENCE)
        executor.pause()
        executor.submit(waiting)
        running.end(1)
        assert executor.wait(1, PATIENCE) == [1]
        executor.wait_saturated(PATIENCE)
        # The counters change before the task begins.
        assert executor.manager is not None
        assert (executor.manager.stats.enqueued, executor.manager.stats.running) == (1, 0)
        executor.resume()
        assert waiting.began.wait(PATIENCE)
        waiting.end(2)
        assert executor.wait(1, PATIENCE) == [2]


def test_a_full_queue_makes_the_caller_wait() -> None:
    endless = Endless()
    with executor_of(Limits(1, HUGE), queue_size=2) as executor:
        executor.submit(endless)
        endless.wait_for(1)
        executor.submit(endless)
        executor.submit(endless)
        with pytest.raises(TimeoutError, match="no room in the queue"):
            executor.submit(endless, timeout=0.01)


def consumer_waits_for_room() -> bool:
    """Whether the thread that collects data waits; counts alone pass through the same values if it never does."""
    consumer = next(thread for thread in threading.enumerate() if thread.name == "rollout-consume")
    assert consumer.ident is not None
    called = [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[consumer.ident])]
    return called[0] == "wait" and "_collect" in called


def test_a_caller_that_takes_nothing_slows_it_down() -> None:
    """What has ended and waits for the caller is bounded too: the rest keeps its place, and nothing more begins."""
    with executor_of(Limits(2, HUGE), queue_size=2) as executor:
        begun = [Controlled() for _ in range(6)]
        for one in begun[:4]:
            executor.submit(one)
            one.end(7)
        assert executor.manager is not None
        manager = executor.manager
        until(consumer_waits_for_room)
        assert manager.stats == RolloutStats(accepted=2, running=2)
        executor.submit(begun[4])
        assert not begun[4].began.is_set()
        assert executor.wait(2, PATIENCE) == [7, 7]
        assert begun[4].began.wait(PATIENCE)
        with pytest.raises(ValueError, match="at most 2 rollouts are kept"):
            executor.wait(3)
        assert executor.wait(2, PATIENCE) == [7, 7]
        with pytest.raises(TimeoutError, match="fewer than 1 rollouts have ended"):
            executor.wait(1, timeout=0.01)


def raising(error: BaseException) -> Callable[[], Any]:
    async def workflow() -> int:
        await asyncio.sleep(0)
        raise error

    return workflow


@pytest.mark.parametrize("error", [Broken("in a workflow"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_is_raised_on_the_callers_thread(error: BaseException) -> None:
    endless = Endless()
    with executor_of(Limits(3, HUGE)) as executor:
        executor.submit(endless)
        executor.submit(raising(error))
        for call in (lambda: executor.wait(1, PATIENCE), lambda: executor.submit(endless)):
            with pytest.raises(BackgroundError, match=type(error).__name__) as caught:
                call()
            assert caught.value.__cause__ is error
        assert executor.manager is not None
        assert executor.manager.stats.rejected == 1
    assert endless.running == 0


def test_a_call_in_place_of_a_coroutine_is_an_error_too() -> None:
    def not_awaitable() -> Any:
        return 3

    with executor_of(Limits(1, 1)) as executor:
        executor.submit(not_awaitable)
        with pytest.raises(BackgroundError, match="TypeError"):
            executor.wait(1, PATIENCE)


def test_an_error_that_nobody_has_heard_of_is_raised_at_the_end() -> None:
    executor = executor_of(Limits(1, 1))
    executor.submit(raising(Broken("unheard")))
    manager = executor.manager
    assert manager is not None
    until(lambda: manager.stats.rejected == 1)
    with pytest.raises(BackgroundError, match="Broken: unheard"):
        executor.shutdown()
    executor.shutdown()


def test_it_does_not_cover_up_what_the_block_fails_with() -> None:
    executor = executor_of(Limits(1, 1))
    manager = executor.manager
    assert manager is not None
    with pytest.raises(LookupError, match="of the block"), executor:  # noqa: PT012 - the block is what is tested
        executor.submit(raising(Broken("in a workflow")))
        until(lambda: manager.stats.rejected == 1)
        raise LookupError("of the block")


def test_an_error_of_the_producer_is_raised_too() -> None:
    """A modifier is the user's own, and runs in the producer's thread."""

    def modifier(_places: int, _stats: RolloutStats, _version: int) -> int:
        raise Broken("in a modifier")

    with fixed.create_workflow_executor(Limits(1, 1), lambda: 0, modifiers=[modifier]) as executor:
        executor.submit(giving(1))
        with pytest.raises(BackgroundError, match="Broken: in a modifier"):
            executor.wait(1, PATIENCE)


def test_a_workflow_that_is_cancelled_from_inside_is_rejected() -> None:
    with executor_of(Limits(1, HUGE)) as executor:
        executor.submit(raising(asyncio.CancelledError()))
        executor.submit(giving(5))
        assert executor.wait(1, PATIENCE) == [5]
        assert executor.manager is not None
        assert executor.manager.stats == RolloutStats(accepted=1, rejected=1)


class TestManager:
    def test_without_one_its_share_is_made(self) -> None:
        executor: WorkflowExecutor[int] = WorkflowExecutor(Limits(64, 32, 3), lambda: 0)
        manager = executor.initialize(train_data_parallel_size=4)
        executor.shutdown()
        assert manager.limits == Limits(16, 8, 3)

    def test_one_that_is_given_is_left_alone(self) -> None:
        mine = StalenessManager(Limits(64, 32, 3).share(4), lambda: 0)
        executor: WorkflowExecutor[int] = WorkflowExecutor(Limits(64, 32, 3), lambda: 0, mine)
        assert executor.initialize(train_data_parallel_size=4) is mine
        executor.shutdown()
        assert mine.limits == Limits(16, 8, 3)

    def test_the_factory_registers_modifiers_with_either(self) -> None:
        mine = StalenessManager(Limits(64, 64).share(4), lambda: 0)
        for given in (None, mine):
            executor = fixed.create_workflow_executor(
                Limits(64, 64),
                lambda: 0,
                modifiers=[lambda places, _stats, _version: places - 6],
                train_data_parallel_size=4,
                manager=given,
            )
            executor.shutdown()
            assert executor.manager is not None
            assert executor.manager.capacity == 10

    def test_one_manager_for_all_ranks_is_right_undivided(self) -> None:
        """As in a single controller: its executors share the places, whichever takes them."""
        shared = StalenessManager(Limits(6, HUGE), lambda: 0)
        endless = Endless()
        executors = [fixed.create_workflow_executor(Limits(6, HUGE), lambda: 0, manager=shared) for _ in range(3)]
        for _ in range(4):
            for executor in executors:
                executor.submit(endless)
        for executor in executors:
            executor.wait_saturated(PATIENCE)
        endless.wait_for(6)
        assert shared.stats == RolloutStats(enqueued=6, running=6)
        for executor in executors:
            executor.shutdown()
        assert endless.running_most == 6
        # The places of an executor that has ended are free for the others, until they end as well.
        rejected = shared.stats.rejected
        assert shared.stats == RolloutStats(rejected=rejected)
        assert 6 <= rejected <= 12

    def test_no_rank_is_refused(self) -> None:
        executor: WorkflowExecutor[int] = WorkflowExecutor(Limits(64, 64), lambda: 0)
        with pytest.raises(ValueError, match="world_size=0: must be at least 1"):
            executor.initialize(0)
