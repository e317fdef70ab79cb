"""tornado: an HTTP client that is not closed outlives its event loop."""

from __future__ import annotations

import asyncio

import pytest
from tornado.httpclient import AsyncHTTPClient

RELEASES = ("tornado==6.4", "tornado==6.6.1")


async def make_client(*, closed: bool) -> None:
    client = AsyncHTTPClient()
    if closed:
        client.close()


@pytest.mark.leakcheck
def test_leaky() -> None:
    asyncio.run(make_client(closed=False))


@pytest.mark.leakcheck
def test_control() -> None:
    asyncio.run(make_client(closed=True))
