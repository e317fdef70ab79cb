"""A thread that goes on leaking, which begins in a test or as the tests are imported."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

IN_A_TEST = True
KEPT: list[bytearray] = []
END = threading.Event()


@pytest.fixture(scope="session", autouse=True)
def tidy() -> Iterator[None]:
    yield
    END.set()


def leak() -> None:
    while not END.wait(0.002):
        KEPT.append(bytearray(50_000))


def begin() -> None:
    threading.Thread(target=leak).start()


def test_that_leaves_a_thread() -> None:
    if IN_A_TEST:
        begin()


if not IN_A_TEST:
    begin()


@pytest.mark.heap_budget
def test_next() -> None:
    time.sleep(0.002)
