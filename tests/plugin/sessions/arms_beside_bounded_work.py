"""Leaks beside work that fills something with a bound."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.leakcheck
KEPT: dict[Any, Any] = {}
OWNERS: dict[Any, Any] = {}
REQUESTS = itertools.count()
LOOP = asyncio.new_event_loop()


def in_deque(name: str) -> None:
    OWNERS.setdefault(name, deque(maxlen=10_000)).append({"request": next(REQUESTS), "path": "/x"})


def in_lru_cache(name: str) -> None:
    OWNERS.setdefault((name,), functools.lru_cache(4096)(lambda number: {"number": number}))(next(REQUESTS))


def leak_fd(kept: list[Any]) -> None:
    kept.append(os.open(__file__, os.O_RDONLY))


def leak_4096(kept: list[Any]) -> None:
    kept.append(bytearray(4096))


def leak_100000(kept: list[Any]) -> None:
    kept.append(bytes(100_000))


def leak_task(kept: list[Any]) -> None:
    async def go() -> None:
        kept.append(asyncio.ensure_future(asyncio.Event().wait()))
        await asyncio.sleep(0)

    LOOP.run_until_complete(go())


def leak_nothing(kept: list[Any]) -> None:
    pass


@pytest.mark.parametrize("log", [in_deque, in_lru_cache])
@pytest.mark.parametrize("leak", [leak_fd, leak_4096, leak_100000, leak_task, leak_nothing])
def test_beside(log: Callable[[str], None], leak: Callable[[list[Any]], None]) -> None:
    log(leak.__name__)
    leak(KEPT.setdefault((log.__name__, leak.__name__), []))


@functools.lru_cache(100_000)
def page(number: int) -> bytes:
    return bytes(3000)


def test_cache_that_cannot_be_filled() -> None:
    page(next(REQUESTS))


@pytest.mark.heap_budget("1 MiB")
def test_cache_above_the_level_when_full() -> None:
    page(next(REQUESTS))


HEAVIER = deque(([[[str(number)]]] for number in range(2000)), 2000)


def test_new_entries_are_heavier() -> None:
    number = next(REQUESTS)
    HEAVIER.append([[[str(number + at) for at in range(20)]]])


def test_zombie() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_waited_for() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
