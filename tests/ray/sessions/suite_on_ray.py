"""A suite with the fixtures that Ray's own tests use, in which one test keeps a reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

KEPT: list[Any] = []
OPTIONS = {"address": "local", "include_dashboard": False, "object_store_memory": 100 << 20, "log_to_driver": False}


@pytest.fixture(scope="module")
def ray_start_regular_shared(request: pytest.FixtureRequest) -> Iterator[Any]:
    param = getattr(request, "param", {})
    yield ray.init(**{"num_cpus": 2, "logging_level": "ERROR", **OPTIONS, **param})
    ray.shutdown()


@ray.remote
def f(number: int) -> int:
    return number + 1


@ray.remote(num_cpus=0)
class Actor:
    def method(self) -> int:
        return 1


def test_without_ray() -> None:
    assert not KEPT or KEPT


def test_task(ray_start_regular_shared: Any) -> None:
    assert ray.get(f.remote(1)) == 2


@pytest.mark.parametrize("size", [10, 200_000])
def test_put(ray_start_regular_shared: Any, size: int) -> None:
    assert len(ray.get(ray.put(bytes(size)))) == size


def test_kept(ray_start_regular_shared: Any) -> None:
    KEPT.append(f.remote(1))  # of test_kept


def test_actor(ray_start_regular_shared: Any) -> None:
    assert ray.get(Actor.remote().method.remote()) == 1


@pytest.mark.xfail(reason="as in plain pytest", strict=True)
def test_fails(ray_start_regular_shared: Any) -> None:
    assert ray.get(f.remote(1)) == 3


@pytest.mark.skip(reason="as in plain pytest")
def test_skipped(ray_start_regular_shared: Any) -> None:
    raise AssertionError


class TestAfterwards:
    def test_task(self, ray_start_regular_shared: Any) -> None:
        assert ray.get([f.remote(number) for number in range(3)]) == [1, 2, 3]
