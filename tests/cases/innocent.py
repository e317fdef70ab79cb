"""Clean: growth that lasts for hundreds of calls, and that the work under test does not cause or will give back."""

from __future__ import annotations

import re
import threading
from collections import deque
from typing import Any

from cases.case import Case, nothing, numbers

NUMBERS = numbers()
PENDING: deque[threading.Timer] = deque()


def start_timer() -> None:
    """A timer that fires a little later, as a debouncer or a retry has it."""
    timer = threading.Timer(0.05, nothing)
    timer.start()
    PENDING.append(timer)
    while PENDING and not PENDING[0].is_alive():
        PENDING.popleft()


def end_timers() -> None:
    while PENDING:
        PENDING.pop().join()


class Node:
    """A page that refers to itself through its view, as parents and children do."""

    def __init__(self) -> None:
        self.text = bytes(500)
        self.view = [self]


NODES: deque[Node] = deque()


def fill_nodes() -> None:
    NODES.extend(Node() for _ in range(1000))


def replace_oldest_node() -> None:
    NODES.popleft()
    NODES.append(Node())


class Recorder:
    """A thread that a fixture of the module starts, and that keeps what it has measured."""

    kept: list[bytes]
    stop: threading.Event
    thread: threading.Thread

    @classmethod
    def start(cls) -> None:
        cls.kept, cls.stop = [], threading.Event()
        cls.thread = threading.Thread(target=cls.record)
        cls.thread.start()

    @classmethod
    def record(cls) -> None:
        while not cls.stop.wait(0.001):
            cls.kept.append(bytes(2000))

    @classmethod
    def end(cls) -> None:
        cls.stop.set()
        cls.thread.join()
        cls.kept.clear()


def work_beside_recorder() -> None:
    Recorder.stop.wait(0.002)


def pattern_of_a_number() -> None:
    re.compile(rf"id={next(NUMBERS)}(\d+)")


def long_pattern() -> None:
    """Its code takes kilobytes of malloc, for which the heap grows, and with it the mapped memory."""
    re.compile(f"{next(NUMBERS)}" + "ab" * 1000)


class Frame:
    """A table of the module, whose columns each test takes. pandas is imported only for it: it is large."""

    table: Any

    @classmethod
    def make(cls) -> None:
        import pandas as pd  # type: ignore[import-untyped]  # has no stubs of its own

        cls.table = pd.DataFrame({"height": [1.0, 2.0], "width": [3.0, 4.0]})

    @classmethod
    def take(cls) -> None:
        _heights = cls.table["height"]
        _rows = cls.table[:]

    @classmethod
    def drop(cls) -> None:
        del cls.table


CASES = (
    Case("timers_that_fire_later", clean=start_timer, teardown=end_timers,
         doubt="malloc keeps freed blocks for each of the threads", timed=True),
    Case("cycles_replaced", clean=replace_oldest_node, setup=fill_nodes, teardown=NODES.clear),
    Case("beside_a_recorder", clean=work_beside_recorder, setup=Recorder.start, teardown=Recorder.end,
         doubt="a thread of the module retains more and more while the test runs", timed=True),
    Case("views_of_a_frame", clean=Frame.take, setup=Frame.make, teardown=Frame.drop,
         doubt="pandas removes references to views that are gone only from 500 on", process_wide=True,
         settles_after=500),
    Case("pattern_for_each_number", clean=pattern_of_a_number, teardown=re.purge,
         doubt="the cache of `re` takes 512 patterns", settles_after=512),
    Case("long_pattern_for_each_number", clean=long_pattern, teardown=re.purge,
         doubt="the cache of `re` takes 512 patterns", settles_after=512),
)  # fmt: skip
