"""The end of the executor: all is counted, all are woken, nothing is kept alive, and a failed start leaves nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from leakcheck_incidents.rollout_executor.executor import BackgroundError, WorkflowExecutor
from leakcheck_incidents.rollout_executor.rollouts import PATIENCE, Endless, until
from leakcheck_incidents.rollout_executor.staleness import Limits, RolloutStats
from rollout_control import HUGE, Broken, executor_of, running

pytestmark = pytest.mark.laboratory


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    # As in test_rollout_executor.
    gc.collect()
    before = running()
    yield
    assert running() == before


def test_shutdown_counts_all_and_lets_nothing_more_in() -> None:
    endless = Endless()
    executor = executor_of(Limits(2, HUGE))
    for _ in range(5):
        executor.submit(endless)
    endless.wait_for(2)
    executor.shutdown()
    assert executor.manager is not None
    assert executor.manager.stats == RolloutStats(rejected=2)
    calls: list[Callable[[], object]] = [
        lambda: executor.submit(endless),
        lambda: executor.wait(1),
        executor.initialize,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"shut down|initialized only once"):
            call()


def test_callers_that_wait_are_woken_by_shutdown() -> None:
    executor = executor_of(Limits(1, 1))
    said: list[str] = []

    def wait() -> None:
        with pytest.raises(RuntimeError, match="shut down") as caught:
            executor.wait(1)
        said.append(str(caught.value))

    waiter = threading.Thread(target=wait)
    waiter.start()
    executor.shutdown()
    waiter.join(PATIENCE)
    assert said == ["shut down"]


def test_a_workflow_that_ignores_its_cancellation_is_told_of() -> None:
    """And nothing but its own thread is left, which ends when it does."""
    stubborn = threading.Event()
    began = threading.Event()

    async def workflow() -> None:
        began.set()
        # Blocks the thread of the loop: that cannot be cancelled.
        stubborn.wait(PATIENCE)

    executor = executor_of(Limits(1, 1))
    executor.submit(workflow)
    assert began.wait(PATIENCE)
    with pytest.raises(TimeoutError, match="1 workflows still run"):
        executor.shutdown(timeout=0.01)
    assert [one.name for one in threading.enumerate() if one.name.startswith("rollout")] == ["rollout-tasks"]
    stubborn.set()
    executor.shutdown(PATIENCE)


def test_a_workflow_that_swallows_a_cancellation_is_cancelled_again() -> None:
    began = threading.Event()

    async def workflow() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    executor = executor_of(Limits(1, 1))
    executor.submit(workflow)
    assert began.wait(PATIENCE)
    executor.shutdown(PATIENCE)


def test_threads_of_a_workflow_end_with_it() -> None:
    """Also one that has something to do still when its workflow is cancelled."""
    began, cancelled, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert cancelled.wait(PATIENCE)
        # Not set before the timeout: this is how long the remaining work takes.
        done.wait(0.05)
        done.set()

    async def workflow() -> None:
        try:
            await asyncio.to_thread(work)
        finally:
            cancelled.set()

    with executor_of(Limits(1, 1)) as executor:
        executor.submit(workflow)
        assert began.wait(PATIENCE)
    assert done.is_set()


def test_nothing_that_ended_is_kept_alive() -> None:
    """No thread's last variable, no queue and no exception holds on to a workflow or its data while all are idle."""

    class Data:
        pass

    class Workflow:
        async def __call__(self) -> Data:
            return Data()

    executor: WorkflowExecutor[Data] = WorkflowExecutor(Limits(1, HUGE), lambda: 0)
    executor.initialize(1)
    with executor:
        workflow = Workflow()
        executor.submit(workflow)
        data = executor.wait(1, PATIENCE)
        gone: list[Callable[[], object]] = [weakref.ref(workflow), weakref.ref(data[0])]
        del workflow, data
        until(lambda: not any(one() for one in gone))


def test_an_error_is_let_go_of_at_the_end() -> None:
    """Its traceback holds the frame of the rollout, and that its memory."""

    class Memory:
        pass

    held: list[weakref.ref[Memory]] = []

    async def workflow() -> None:
        memory = Memory()
        held.append(weakref.ref(memory))
        raise Broken("with memory")

    executor = executor_of(Limits(1, 1))
    executor.submit(workflow)
    with pytest.raises(BackgroundError):
        executor.wait(1, PATIENCE)
    assert held[0]() is not None
    executor.shutdown()
    until(lambda: held[0]() is None)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    real, starts = threading.Thread.start, count()

    def start(thread: threading.Thread) -> None:
        if next(starts) == at:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    executor: WorkflowExecutor[int] = WorkflowExecutor(Limits(1, 1), lambda: 0)
    with pytest.raises(RuntimeError, match="can't start"):
        executor.initialize(1)
