"""Tests that reach a ceiling, or stay below it."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_leakcheck import Leakcheck

KEPT: list[Any] = []


@pytest.mark.leakcheck_ceiling(fd=128)
def test_descriptors() -> None:
    for _ in range(9):
        KEPT.append(open(__file__))


@pytest.mark.leakcheck_ceiling(fd=256)
def test_found_before() -> None:
    for _ in range(9):
        KEPT.append(open(__file__))


@pytest.mark.leakcheck_ceiling(fd=256)
def test_fixed() -> None:
    for _ in range(9):
        open(__file__).close()


runs: list[int] = []


@pytest.mark.leakcheck_ceiling(fd=64)
def test_needs_more() -> None:
    runs.append(1)
    files = [open(__file__) for _ in range(10 if len(runs) < 6 else 80)]
    for file in files:
        file.close()


@pytest.mark.leakcheck_ceiling(fd=64)
def test_needs_more_in_warm_up() -> None:
    runs.append(1)
    for file in [open(__file__) for _ in range(10 if len(runs) < 2 else 80)]:
        file.close()


@pytest.mark.fd_budget(0)
@pytest.mark.leakcheck_ceiling(rss="300 MiB")
def test_memory() -> None:
    KEPT.append(bytearray(24 << 20))


@pytest.mark.rss_budget("1 KiB")
@pytest.mark.leakcheck_ceiling(rss="64 MiB")
@pytest.mark.parametrize("blocks", [1600, 1700])
def test_small_blocks(blocks: int) -> None:
    KEPT.append([bytearray(1000) for _ in range(blocks)])


@pytest.mark.leakcheck_ceiling(rss="1 MiB")
def test_too_low() -> None:
    pass


@pytest.mark.leakcheck_ceiling(fd=256)
def test_steps(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        KEPT.append(open(__file__))
