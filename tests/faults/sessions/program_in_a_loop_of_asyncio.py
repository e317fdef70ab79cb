"""Loops and blocks in coroutines, where calls that block are refused."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator

import pytest
from blockbuster import BlockBuster

from pytest_leakcheck import Leakcheck

KEPT: list[int] = []


@pytest.fixture(autouse=True, scope="session")
def no_blocking_calls() -> Iterator[None]:
    guard = BlockBuster()
    guard.activate()
    yield
    guard.deactivate()


def run(make: Callable[[], Coroutine[None, None, None]]) -> None:
    async def task() -> None:
        await make()

    asyncio.run(task())


def test_refuses() -> None:
    async def blocks() -> None:
        open(__file__).read()

    with pytest.raises(Exception, match="Blocking call"):
        run(blocks)


@pytest.mark.parametrize("leak", [False, True], ids=["clean", "leaky"])
def test_steps(leakcheck: Leakcheck, leak: bool) -> None:
    async def loop() -> None:
        for _ in leakcheck.steps(fd=0, disk=0, object=0):
            await asyncio.sleep(0)
            KEPT.extend([os.dup(0)] if leak else ())

    run(loop)


@pytest.mark.parametrize("leak", [False, True], ids=["clean", "leaky"])
def test_block(leakcheck: Leakcheck, leak: bool) -> None:
    async def block() -> None:
        with leakcheck.budget(fd=0):
            await asyncio.sleep(0)
            KEPT.extend([os.dup(0)] if leak else ())

    run(block)


def test_left(leakcheck: Leakcheck) -> None:
    async def loop() -> None:
        for step in leakcheck.steps(fd=0):
            if step == 3:
                break

    run(loop)
