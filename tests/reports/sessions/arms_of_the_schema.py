"""Findings of each kind, for each field of the report."""

from __future__ import annotations

import os
from typing import Any

import pytest

from pytest_leakcheck import Leakcheck

KEPT: list[Any] = []


def leak() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


@pytest.mark.fd_budget(0, reason="a worker lives for a week")
@pytest.mark.heap_budget("1 MiB")
def test_leak() -> None:
    leak()


@pytest.mark.leakcheck
def test_same_cause() -> None:
    leak()


@pytest.mark.fd_budget(0)
def test_cycle() -> None:
    cycle: list[Any] = [open(__file__)]
    cycle.append(cycle)


@pytest.mark.object_budget(0)
def test_objects() -> None:
    KEPT.append([[]])


@pytest.mark.arrow_budget(0)
def test_unavailable() -> None:
    pass


@pytest.mark.fd_budget(0)
def test_not_repeatable(runs: list[int] = []) -> None:
    runs.append(1)
    assert len(runs) < 6


@pytest.mark.leakcheck(isolate=True, resources=["fd"])
def test_lost() -> None:
    os._exit(3)


def test_loops(leakcheck: Leakcheck) -> None:
    leakcheck.gauge("entries", lambda: 1, level=1)
    for _ in leakcheck.steps(fd=0):
        leakcheck.checkpoint("read")


@pytest.mark.leakcheck
def test_clean() -> None:
    pass


def leak_if_it_fails() -> None:
    file = os.open(__file__, os.O_RDONLY)
    os.close(os.dup(file))
    os.close(file)


@pytest.mark.leakcheck(failures=["os.dup"])
def test_failing_path() -> None:
    leak_if_it_fails()
