"""tornado: a set of the class keeps each awaitable that was pending when its loop was closed, and so the loop."""

from __future__ import annotations

import asyncio

import pytest
from tornado.gen import convert_yielded
from tornado.ioloop import IOLoop

RELEASES = ("tornado==6.4", "tornado==6.6.1")


async def begin(*, pending: bool) -> None:
    task = convert_yielded(asyncio.sleep(60 if pending else 0))
    if not pending:
        await task


def run(*, pending: bool) -> None:
    loop = IOLoop(make_current=False)
    loop.run_sync(lambda: begin(pending=pending))
    loop.close()


@pytest.mark.leakcheck
def test_leaky() -> None:
    run(pending=True)


@pytest.mark.leakcheck
def test_control() -> None:
    run(pending=False)
