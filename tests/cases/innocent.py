"""Clean: growth that lasts for hundreds of calls, and that the work under test does not cause or will give back."""

from __future__ import annotations

import re
import threading
from collections import deque

from cases.case import Case, nothing, numbers

NUMBERS = numbers()
PENDING: deque[threading.Timer] = deque()


def start_timer() -> None:
    """A timer that fires a fifth of a second later, as a debouncer or a retry has it."""
    timer = threading.Timer(0.2, nothing)
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


CASES = (
    Case("timers_that_fire_later", clean=start_timer, teardown=end_timers, timed=True),
    Case("cycles_replaced", clean=replace_oldest_node, setup=fill_nodes, teardown=NODES.clear),
    Case(
        "beside_a_recorder",
        clean=work_beside_recorder,
        setup=Recorder.start,
        teardown=Recorder.end,
        doubt="a thread of the module retains more and more while the test runs",
        timed=True,
    ),
    Case("pattern_for_each_number", clean=pattern_of_a_number, teardown=re.purge, settles_after=512),
)
