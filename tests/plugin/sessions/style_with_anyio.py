"""Coroutines, by anyio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def streams() -> AsyncIterator[Any]:
    send, receive = anyio.create_memory_object_stream(1)  # type: ignore[var-annotated]
    async with send, receive:
        yield send, receive


async def test_awaits() -> None:
    await anyio.sleep(0)


async def test_fails() -> None:
    assert await anyio.sleep(0)  # type: ignore[func-returns-value]


async def test_streams(streams: Any) -> None:
    send, receive = streams
    async with anyio.create_task_group() as group:
        group.start_soon(send.send, 3)
        assert await receive.receive() == 3
