"""anyio: a dict of variables refers from each event loop with worker threads to itself, and so never loses it."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.to_thread
import pytest

RELEASES = ("anyio==3.1.0", "anyio==4.14.2")


async def work(*, threaded: bool) -> None:
    if threaded:
        await anyio.to_thread.run_sync(int)


@pytest.mark.leakcheck
def test_leaky() -> None:
    anyio.run(partial(work, threaded=True))


@pytest.mark.leakcheck
def test_control() -> None:
    anyio.run(partial(work, threaded=False))
