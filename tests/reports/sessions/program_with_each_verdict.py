"""A test for each verdict."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_leakcheck import Leakcheck

KEPT: list[int] = []


@pytest.mark.fd_budget(0)
def test_leaks() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


@pytest.mark.fd_budget(1)
def test_two_stay(runs: list[int] = []) -> None:
    runs.append(1)
    if len(runs) in (5, 6):
        KEPT.append(os.open(__file__, os.O_RDONLY))


@pytest.mark.fd_budget(0)
def test_cycle() -> None:
    cycle: list[Any] = [open(__file__)]
    cycle.append(cycle)


@pytest.mark.fd_budget(0)
def test_once(runs: list[int] = []) -> None:
    runs.append(1)
    assert len(runs) < 3


@pytest.mark.arrow_budget(0)
def test_no_arrow() -> None:
    pass


@pytest.mark.fd_budget(0)
def test_own_failure() -> None:
    assert 0


def test_two_blocks(leakcheck: Leakcheck) -> None:
    with leakcheck.budget(fd=1):
        pass
    for _ in leakcheck.steps(fd=0):
        KEPT.append(os.open(__file__, os.O_RDONLY))
