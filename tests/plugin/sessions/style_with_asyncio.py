"""Coroutines, by pytest-asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def server() -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(asyncio.sleep(60))
    yield task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wide() -> asyncio.AbstractEventLoop:
    await asyncio.sleep(0)
    return asyncio.get_running_loop()


async def test_awaits() -> None:
    await asyncio.sleep(0)


async def test_fails() -> None:
    assert await asyncio.sleep(0, False)


async def test_with_a_fixture(server: asyncio.Task[None]) -> None:
    assert not server.done()


@pytest.mark.asyncio(loop_scope="module")
async def test_on_the_loop_of_the_module(wide: asyncio.AbstractEventLoop) -> None:
    assert asyncio.get_running_loop() is wide


@pytest.mark.asyncio(loop_scope="module")
async def test_on_it_again(wide: asyncio.AbstractEventLoop) -> None:
    assert asyncio.get_running_loop() is wide
