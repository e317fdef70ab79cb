"""Workloads on Ray that keep nothing, one test each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.dag import InputNode
from ray.exceptions import GetTimeoutError, RayTaskError, TaskCancelledError
from ray.util import ActorPool
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.queue import Queue


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote
def total(numbers: list[Any]) -> int:
    return sum(ray.get(numbers))


@ray.remote
def nest(depth: int) -> int:
    return 0 if depth == 0 else 1 + ray.get(nest.remote(depth - 1))


@ray.remote
def fail() -> None:
    raise ValueError("as expected")


@ray.remote(max_retries=2, retry_exceptions=True)
def fail_once(path: Path) -> int:
    if not path.exists():
        path.touch()
        raise OSError("the first time")
    return 1


@ray.remote
def array(size: int) -> Any:
    return np.ones(size)


@ray.remote
def count_up(last: int) -> Iterator[int]:
    for number in range(last):  # noqa: UP028 - Ray's generators cannot delegate
        yield number


@ray.remote
def wait_for(seconds: float) -> None:
    time.sleep(seconds)


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int = 1) -> int:
        self.count += number
        return self.count

    def fail(self) -> None:
        raise ValueError("as expected")


@ray.remote(num_cpus=0)
class Concurrent:
    async def step(self) -> int:
        await asyncio.sleep(0)
        return 1


@pytest.fixture(scope="module")
def counter(cluster: None) -> Any:
    return Counter.remote()


@pytest.fixture(scope="module")
def concurrent(cluster: None) -> Any:
    return Concurrent.remote()


def test_task() -> None:
    assert ray.get(square.remote(3)) == 9


def test_many_tasks() -> None:
    assert sum(ray.get([square.remote(number) for number in range(8)])) == 140


def test_task_of_refs() -> None:
    assert ray.get(total.remote([square.remote(1), square.remote(2)])) == 5


def test_nested_tasks() -> None:
    assert ray.get(nest.remote(1)) == 1


def test_small_object() -> None:
    assert ray.get(ray.put({"a": 1})) == {"a": 1}


def test_large_object() -> None:
    assert len(ray.get(ray.put(bytes(500_000)))) == 500_000


def test_array_without_copy() -> None:
    assert ray.get(array.remote(50_000)).sum() == 50_000


def test_task_that_fails() -> None:
    with pytest.raises(RayTaskError):
        ray.get(fail.remote())


def test_task_that_is_retried(tmp_path: Path) -> None:
    assert ray.get(fail_once.remote(tmp_path / "tried")) == 1


def test_task_that_is_not_waited_for() -> None:
    square.remote(3)


def test_some_of_the_tasks() -> None:
    ready, _rest = ray.wait([square.remote(number) for number in range(4)], num_returns=2)
    assert len(ready) == 2


def test_task_that_takes_too_long() -> None:
    ref = wait_for.remote(0.02)
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0.001)
    # Else tasks are submitted faster than they end.
    ray.get(ref)


def test_task_that_is_cancelled() -> None:
    # It waits for a resource that no node has: that a running task is interrupted is no certainty.
    ref = square.options(resources={"none": 1}).remote(3)
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)


def test_generator() -> None:
    assert [ray.get(one) for one in count_up.remote(3)] == [0, 1, 2]


def test_actor_of_the_module(counter: Any) -> None:
    assert ray.get(counter.add.remote()) > 0


def test_method_that_fails(counter: Any) -> None:
    with pytest.raises(RayTaskError):
        ray.get(counter.fail.remote())


def test_asynchronous_actor(concurrent: Any) -> None:
    assert ray.get([concurrent.step.remote() for _ in range(3)]) == [1, 1, 1]


def test_pool_of_actors(counter: Any) -> None:
    pool = ActorPool([counter])
    assert len(list(pool.map(lambda actor, number: actor.add.remote(number), [1, 2]))) == 2


def test_graph(counter: Any) -> None:
    with InputNode() as given:
        dag = counter.add.bind(given)
    assert ray.get(dag.execute(1)) > 0


def test_placement_group() -> None:
    group = placement_group([{"CPU": 0.01}])
    ray.get(group.ready())
    remove_placement_group(group)


def test_actor_that_is_killed() -> None:
    actor = Counter.remote()
    assert ray.get(actor.add.remote()) == 1
    ray.kill(actor)


def test_actor_that_is_dropped() -> None:
    assert ray.get(Counter.remote().add.remote()) == 1


def test_named_actor() -> None:
    actor = Counter.options(name="one", lifetime="detached").remote()
    ray.get(actor.add.remote())
    ray.kill(ray.get_actor("one"))


def test_queue() -> None:
    queue = Queue(actor_options={"num_cpus": 0})
    queue.put(1)
    assert queue.get() == 1
    queue.shutdown()


def test_dataset() -> None:
    data = pytest.importorskip("ray.data")
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    assert data.range(8).map(lambda row: {"id": row["id"] + 1}).sum("id") == 36
