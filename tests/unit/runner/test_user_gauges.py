from __future__ import annotations

import gc
import sys
import weakref

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.recording import Phase
from pytest_leakcheck.runner.user_gauges import Gauges, Phases


class Queue:
    def __init__(self, length: int) -> None:
        self.length = length

    def read(self) -> int:
        return self.length


def test_a_gauge_is_live_in_the_body_and_stands_still_after_it() -> None:
    gauges = Gauges()
    queue = Queue(3)
    gauges.follow("queue", queue.read, 7)
    gauges.follow("seen", 5, None)
    reads, budgets = gauges.seal()
    assert budgets == (Budget("gauge:queue", 7), Budget("gauge:seen"))
    queue.length = 4
    assert (reads["queue"](), reads["seen"]()) == (4, 0)
    gauges.read()
    queue.length = 9
    assert (reads["queue"](), reads["seen"]()) == (4, 5)


def test_nothing_of_the_test_is_kept_beyond_an_iteration() -> None:
    gauges = Gauges()
    queue = Queue(3)
    alive = weakref.ref(queue)
    gauges.follow("queue", queue.read, None)
    gauges.read()
    del queue
    gc.collect()
    assert alive() is None


def test_many_iterations_retain_no_block() -> None:
    gauges, phases = Gauges(), Phases()
    phases.open({"fd": lambda: 1 << 20})
    queue = Queue(1 << 20)
    gauges.follow("queue", queue.read, None)
    gauges.seal()
    for _ in range(10):
        gauges.follow("queue", queue.read, None)
        phases.begin()
        phases.end("loaded")
        gauges.read()
    before = sys.getallocatedblocks()
    for _ in range(500):
        gauges.follow("queue", queue.read, None)
        phases.begin()
        phases.end("loaded")
        gauges.read()
    assert sys.getallocatedblocks() - before < 20


def test_one_that_is_new_later_is_an_error() -> None:
    gauges = Gauges()
    gauges.seal()
    with pytest.raises(
        RuntimeError, match="was not called in the first iteration: call it in every iteration, or in none"
    ):
        gauges.follow("queue", 3, None)


def test_a_phase_is_what_was_added_since_the_last_one() -> None:
    files = [1, 2]
    phases = Phases()
    phases.end("load")
    phases.open({"fd": lambda: len(files)})
    for _ in range(2):
        phases.begin()
        files.append(3)
        phases.end("load")
        files.extend((4, 5))
        files.remove(3)
        phases.end("train")
    assert phases.take() == (Phase("load", {"fd": 1}), Phase("train", {"fd": 1}))


def test_phases_cost_nothing_as_long_as_there_are_none() -> None:
    counter = iter(range(9))
    phases = Phases()
    phases.open({"fd": counter.__next__})
    phases.begin()
    assert (next(counter), phases.take()) == (0, ())
