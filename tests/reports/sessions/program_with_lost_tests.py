"""Tests that are lost, fail or cannot be judged."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.mark.scaling_budget("jobs", [2, 4, 8], fd="O(1)")
def test_sizes_lost(jobs: int) -> None:
    if jobs == 4:
        os._exit(3)


@pytest.mark.scaling_budget("jobs", [2, 4, 8], arrow="O(1)")
def test_sizes_unavailable(jobs: int) -> None:
    pass


@pytest.mark.scaling_budget("jobs", [2, 4, 8], fd="O(1)")
def test_own_failure(jobs: int) -> None:
    assert jobs < 4


@pytest.mark.fd_budget(0)
@pytest.mark.leakcheck(isolate=True)
def test_lost() -> None:
    os._exit(3)


@pytest.fixture
def ends() -> Iterator[None]:
    yield
    os._exit(3)


@pytest.mark.fd_budget(0)
@pytest.mark.leakcheck(isolate=True)
def test_lost_late(ends: None) -> None:
    pass


@pytest.mark.arrow_budget(0)
def test_unavailable() -> None:
    pass
