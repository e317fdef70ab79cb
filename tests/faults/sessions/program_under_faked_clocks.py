"""Tests that depend on the time of the measurement."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

KEPT: list[Any] = []


def leak() -> None:
    KEPT.append(os.open(__file__, os.O_RDONLY))


COUNT = [0]


@pytest.mark.leakcheck(isolate=True, resources=("fd",))
def test_hangs() -> None:
    COUNT[0] += 1
    if COUNT[0] == 4:
        lock = threading.Lock()
        with lock, lock:
            pass


@pytest.mark.fd_budget(0)
def test_clean() -> None:
    os.close(os.open(__file__, os.O_RDONLY))


@pytest.mark.fd_budget(0)
def test_leaky() -> None:
    leak()


@pytest.mark.heap_budget(0)
def test_leaks_memory() -> None:
    KEPT.append(bytearray(10000))


@pytest.mark.leakcheck(iterations=100000, max_time=0.5, resources=("fd",))
def test_out_of_time() -> None:
    pass


# The thread ends by itself a little later, which is waited for.
@pytest.mark.thread_budget(0)
def test_ends_later() -> None:
    threading.Thread(target=threading.Event().wait, args=(0.02,)).start()
