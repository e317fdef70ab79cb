from __future__ import annotations

import gc
import sys
import weakref

from pytest_leakcheck.config.budget import Budget
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
