"""Tests in which a debugger stops."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_leakcheck import Leakcheck

KEPT: list[int] = []


def leak() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


RUNS: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def counted() -> Iterator[None]:
    yield
    print("RUNS", {name: RUNS.count(name) for name in sorted(set(RUNS))})


def count(name: str) -> int:
    RUNS.append(name)
    return RUNS.count(name)


@pytest.mark.fd_budget(0)
def test_first() -> None:
    leak()
    count("first")
    breakpoint()


@pytest.mark.fd_budget(0)
def test_set_trace() -> None:
    count("set_trace")
    import pdb

    pdb.set_trace()


@pytest.mark.fd_budget(0)
def test_fifth() -> None:
    if count("fifth") == 5:
        breakpoint()
        assert 0, "in the fifth iteration"


@pytest.fixture
def stops() -> None:
    breakpoint()


@pytest.mark.fd_budget(0)
def test_in_set_up(stops: None) -> None:
    count("set_up")


def test_loop(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        if count("loop") == 3:
            breakpoint()


def test_block(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=0):
        leak()
        breakpoint()


@pytest.mark.leakcheck(isolate=True)
def test_isolated() -> None:
    count("isolated")
    breakpoint()


@pytest.mark.fd_budget(0)
def test_never() -> None:
    leak()
