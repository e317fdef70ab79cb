from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from itertools import pairwise

import pytest

from pytest_leakcheck.runner.sampler import Sampler

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")


def test_garbage_from_before_the_start_is_found_for_each_resource_that_grew() -> None:
    before: list[list[object]] = [[bytearray(10_000)] for _ in range(50)]
    for one in before:
        one.append(one)
    del one
    sampler = Sampler(["object", "heap"], {}, 100)
    try:
        sampler.start()
        before.clear()
        sampler.read()
        garbage = {}
        for name in ("heap", "object"):
            garbage[name] = sampler.thaw(name)
            sampler.refreeze()
        # The first call collects all of it; the second one would find nothing to count.
        assert garbage["heap"] >= 50 * 10_000
        assert garbage["object"] >= 50
        sampler.read()
        assert sampler.thaw("heap") < 10_000
    finally:
        sampler.close()


class Cycle:
    """Garbage that only the collector releases."""

    def __init__(self) -> None:
        self.itself = self
        self.payload = bytearray(10_000)


def test_garbage_of_earlier_tests_is_collected_once_a_counter_rises_steadily() -> None:
    kept: list[object] = []
    earlier = Cycle()
    released = weakref.ref(earlier)
    # Among the oldest objects, in which only a walk over all finds it. After a walk, the next one is not due for a while.
    Sampler(["object", "heap"], {}, 10).close()
    gc.collect()
    del earlier
    sampler = Sampler(["object", "heap"], {}, 100, walk_now=False)
    try:
        sampler.start()
        for number in range(12):
            # Now and then, as what fills or empties a cache.
            kept += [] if number % 4 else [[]]
            sampler.read()
            sampler.collect_earlier_garbage()
        assert released() is not None
        for _ in range(8):
            kept.append([])
            sampler.read()
            sampler.collect_earlier_garbage()
        assert released() is None
        readings = sampler.samples.series("object").readings[12:]
        assert [after - before for before, after in pairwise(readings)] == [1] * 8
        assert sampler.samples.above_start("heap") >= 0
        assert sampler.thaw("heap") < 10_000, "what earlier tests left explains nothing that this one gains"
    finally:
        sampler.close()


def test_a_measurement_that_has_ended_leaves_no_garbage() -> None:
    """Its rows are large: where they wait for a collection of all objects, a long session grows."""
    for _ in range(3):
        Sampler(["object", "heap", "block", "mmap", "rss", "fd", "shm"], {}, 100).close()
    gc.collect()
    sampler = Sampler(["object", "heap", "block", "mmap", "rss", "fd", "shm"], {}, 100)
    sampler.start()
    sampler.read()
    sampler.close()
    del sampler
    assert gc.collect() == 0


@pytest.mark.parametrize("starts_again", [False, True])
def test_objects_made_for_each_iteration_count_once_though_some_were_frozen(starts_again: bool) -> None:
    """As what pytest makes for each iteration, if objects are frozen again in the midst of a series or before the next."""
    sampler = Sampler(["object", "heap"], {}, 100)
    try:
        made = [[number] for number in range(8)]
        sampler.start()
        for row in range(12):
            made = [[number + row] for number in range(8)]
            sampler.read()
            if row == 5:
                sampler.thaw("object")
                sampler.refreeze()
                if starts_again:
                    sampler.start()
        objects = sampler.samples.columns["object"][0 if starts_again else 2 : sampler.samples.n + 1]
    finally:
        sampler.close()
    assert made
    assert len(set(objects)) == 1, list(objects)


@pytest.mark.parametrize("children", [0, 1])
def test_an_iteration_that_leaves_garbage_has_the_blocks_of_one_that_does_not(children: int) -> None:
    child = subprocess.Popen(["sleep", "60"]) if children else None
    sampler = Sampler(["object", "block"], {}, 20)
    try:
        sampler.start()
        # After the first collection that finds something, which lets Python 3.14 keep a block or two.
        for leaves_garbage in [False] * 3 + [True] * 2 + [False, True, True]:
            if leaves_garbage:
                cycle: list[object] = []
                cycle.append(cycle)
                del cycle
            sampler.read(True)
        blocks = sampler.samples.series("block").readings[4:]
    finally:
        sampler.close()
        if child is not None:
            child.kill()
            child.wait()
    assert len(set(blocks)) == 1, blocks
