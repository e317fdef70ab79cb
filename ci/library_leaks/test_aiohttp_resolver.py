"""aiohttp 3.12: a closed session leaves the name resolver of its event loop open, with a thread and descriptors."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

RELEASES = ("aiohttp==3.12.0", "aiohttp==3.12.9")
NEEDS = ("aiodns==3.4.0", "pycares==4.8.0")
KEPT: list[object] = []


async def open_session(*, threaded: bool) -> None:
    resolver = aiohttp.ThreadedResolver() if threaded else None
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=resolver)):
        pass


@pytest.mark.leakcheck
def test_leaky() -> None:
    asyncio.run(open_session(threaded=False))


@pytest.mark.leakcheck
def test_control() -> None:
    asyncio.run(open_session(threaded=True))


async def keep_session() -> None:
    KEPT.append(aiohttp.ClientSession())


@pytest.mark.leakcheck
def test_kept() -> None:
    asyncio.run(keep_session())
