"""Resident memory that no exact counter shows, or that one does."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import time
from typing import Any

import numpy as np
import pytest

MIB = 1 << 20
pytestmark = pytest.mark.leakcheck
# As an allocator of its own does, it reserves address space once, and hands it out in pieces.
ARENA = mmap.mmap(-1, 1024 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
AT = itertools.count()
KEPT: list[Any] = []
MMAP = ctypes.CDLL(None).mmap
MMAP.restype, MMAP.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


def test_arena_leaks_past_malloc() -> None:
    ARENA.seek(2 * MIB * next(AT))
    ARENA.write(bytes([1]) * (2 * MIB))


def test_arena_reused() -> None:
    ARENA.seek(0)
    ARENA.write(bytes([1]) * (2 * MIB))


@pytest.mark.rss_budget
def test_arena_leaks_under_a_budget() -> None:
    ARENA.seek(2 * MIB * next(AT))
    ARENA.write(bytes([1]) * (2 * MIB))


@pytest.mark.heap_budget(per_iteration="2 MiB")
@pytest.mark.mmap_budget(per_iteration="2 MiB")
@pytest.mark.object_budget(per_iteration=4)
@pytest.mark.block_budget(per_iteration=4)
def test_growth_is_allowed_to_the_heap() -> None:
    KEPT.append(np.ones(MIB, np.uint8))


@pytest.fixture(scope="module")
def ring() -> Any:
    # All of it is in use from the beginning, as malloc counts.
    return np.zeros((512, 2 * MIB), np.uint8)


def test_ring_is_written(ring: Any) -> None:
    ring[next(AT) % len(ring)] = 1


@pytest.mark.leakcheck(max_time=12)
def test_slow_mappings_beside_a_ring(ring: Any) -> None:
    time.sleep(0.1)
    address = MMAP(None, 8 * MIB, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(address, 1, 8 * MIB)
