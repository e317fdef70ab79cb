"""Tests that allocate on two devices."""

from __future__ import annotations

import os
from typing import Any

import pytest

MIB = 1 << 20
KEPT: list[int] = []


@pytest.mark.vram_budget(0)
def test_quiet(first: Any, second: Any) -> None:
    first.allocate(MIB)
    first.allocate(-MIB)


@pytest.mark.vram_budget(0)
def test_leak_on_the_second(first: Any, second: Any) -> None:
    second.allocate(MIB)


@pytest.mark.vram_budget(0)
def test_unseen_by_the_driver(first: Any, second: Any) -> None:
    first.allocate(MIB, seen=False)


@pytest.mark.vram_budget(0)
def test_of_another_library(first: Any, second: Any) -> None:
    first.seen += MIB


runs: list[int] = []


@pytest.mark.vram_budget(0)
@pytest.mark.fd_budget(0)
def test_lost(first: Any, second: Any) -> None:
    runs.append(1)
    first.allocate(MIB, seen=False)
    first.lost = len(runs) > 8


@pytest.mark.vram_budget(0)
@pytest.mark.fd_budget(0)
def test_lost_and_a_leak(first: Any, second: Any) -> None:
    first.lost = True
    KEPT.append(os.open(__file__, os.O_RDONLY))
