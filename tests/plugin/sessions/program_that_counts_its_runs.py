"""Tests of each kind, which print how often each has run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from pytest_leakcheck import Leakcheck

RUNS: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def counted() -> Iterator[None]:
    yield
    print("RUNS", {name: RUNS.count(name) for name in sorted(set(RUNS))})


@pytest.mark.fd_budget(0)
def test_repeated() -> None:
    RUNS.append("repeated")


@pytest.mark.leakcheck(isolate=True)
def test_isolated() -> None:
    assert "GLIBC_TUNABLES" not in os.environ
    RUNS.append("isolated")


@pytest.mark.scaling_budget("rows", [4, 8, 16], heap="O(n)")
def test_sizes(rows: int) -> None:
    RUNS.append("sizes")


def test_loop(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        RUNS.append("loop")


def test_plain() -> None:
    RUNS.append("plain")
