"""A suite in which hardly a test has a mark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

KEPT: list[Any] = []
BOUNDED: dict[Any, Any] = {}
RUNS: list[int] = []


def test_clean() -> None:
    assert sorted([2, 1]) == [1, 2]


def test_leak(tmp_path: Path) -> None:
    KEPT.append(open(tmp_path / "log", "w"))


def test_every_second(runs: list[int] = []) -> None:
    runs.append(1)
    if len(runs) % 2:
        KEPT.append(os.open(__file__, os.O_RDONLY))


def test_memory() -> None:
    KEPT.append([])


def test_memo() -> None:
    BOUNDED[len(BOUNDED) % 3] = []


@pytest.mark.leakcheck(False, reason="keeps them on purpose")
def test_opted_out() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


@pytest.mark.xfail(run=False, reason="crashes")
def test_not_run() -> None:
    os.abort()


@pytest.mark.xfail
def test_xfails() -> None:
    assert 0


def test_skips() -> None:
    pytest.skip("not here")


def test_fails() -> None:
    assert 0


@pytest.mark.parametrize("numbers", [iter(range(2))])
def test_used_up(numbers: Iterator[int]) -> None:
    next(numbers)


@pytest.fixture
def benchmark() -> Callable[[Callable[[], None]], None]:
    return lambda call: call()


def test_benchmark(benchmark: Callable[[Callable[[], None]], None]) -> None:
    benchmark(lambda: KEPT.append(os.open(__file__, os.O_RDONLY)))


@pytest.mark.fd_budget(1)
def test_marked() -> None:
    pass


def test_at_rest() -> None:
    pass
