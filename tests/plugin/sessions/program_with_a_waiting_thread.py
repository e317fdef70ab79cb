"""A thread that was there before the test. Each time it waits, it makes a lock and a method again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

KEEPS = False

KEPT: list[Any] = []
CALLS = [0]


class Waiter(threading.Thread):
    bell, heard, ended = threading.Event(), threading.Event(), False

    def run(self) -> None:
        while not self.ended:
            self.bell.wait()
            self.bell.clear()
            self.heard.set()


@pytest.fixture(scope="module")
def waiter() -> Iterator[Waiter]:
    waiter = Waiter()
    waiter.start()
    yield waiter
    waiter.ended = True
    waiter.bell.set()
    waiter.join()


@pytest.mark.leakcheck(iterations=60, resources=["object"])
@pytest.mark.object_budget(0)
def test_rings(waiter: Waiter) -> None:
    CALLS[0] += 1
    if CALLS[0] > 20:
        waiter.bell.set()
        waiter.heard.wait()
        waiter.heard.clear()
        while not waiter.bell._cond._waiters:  # type: ignore[attr-defined]
            pass
    if CALLS[0] == 25 and KEEPS:
        KEPT.extend([[], [], []])
