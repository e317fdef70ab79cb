"""What the interpreter allocates in pools of its own, and what malloc serves."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest

from pytest_leakcheck.probes.native_heap import Heap
from pytest_leakcheck.probes.runtime_counters import MAX_POOL_BYTES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the C library's own counter")
@pytest.mark.skipif(not sys.getallocatedblocks(), reason="the interpreter has no pools of its own (PYTHONMALLOC)")
@pytest.mark.parametrize("larger_by", [0, 1])
def test_the_largest_block_of_a_pool_is_none_of_malloc_and_a_larger_one_is(larger_by: int) -> None:
    length = MAX_POOL_BYTES + larger_by - sys.getsizeof(b"")
    kept: list[bytes | None] = [None] * 1000
    with closing(Heap()) as heap:
        heap.open()
        before = heap.read()
        for at in range(1000):
            kept[at] = bytes(length)
        of_malloc = heap.read() - before
    assert of_malloc // (1000 * MAX_POOL_BYTES) == larger_by
