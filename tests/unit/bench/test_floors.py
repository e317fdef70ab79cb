"""The leak that the bench plants is as large as it says, and is found at the floor."""

from __future__ import annotations

import sys
from random import Random

import psutil
import pytest

from pytest_leakcheck.probes.native_heap import Heap
from sized_leaks import Planted

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")


@pytest.mark.parametrize("floor", [9.0, 40.0, 300.0])
def test_a_planted_leak_of_memory_adds_up(floor: float) -> None:
    heap = Heap()
    heap.open()
    planted = Planted("heap", floor)
    planted()
    before = heap.read()
    for _ in range(4000):
        planted()
    # Malloc may hand out 16 bytes more, if what is left of a free block is too small for another one.
    assert heap.read() - before == pytest.approx(4000 * floor, rel=0.4 if floor < 100 else 0.05)
    planted.release()
    heap.close()


def test_a_planted_descriptor_comes_as_often_as_it_should() -> None:
    planted = Planted("fd", 0.25, Random(1))
    before = psutil.Process().num_fds()
    for _ in range(200):
        planted()
    assert 30 <= psutil.Process().num_fds() - before <= 70
    planted.release()
    assert psutil.Process().num_fds() == before
