"""Tasks that wait for one future, and that nothing ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

LEAKY = True


class Hub:
    loop = asyncio.new_event_loop()
    changed: Any = None


async def next_change() -> None:
    await Hub.changed  # of test_watchers AWAIT


async def watch() -> None:
    await next_change()


async def step() -> None:
    Hub.changed = Hub.changed or asyncio.get_running_loop().create_future()
    watching = []
    # Few enough that a trace leaves no event out, however busy the machine is.
    for _ in range(12):
        watching.append(asyncio.ensure_future(watch()))  # of test_watchers LEAK
    await asyncio.sleep(0)
    for task in watching:
        if not LEAKY:
            task.cancel()


@pytest.mark.task_budget(0)
@pytest.mark.leakcheck(iterations=22, resources=["task"])
def test_watchers() -> None:
    Hub.loop.run_until_complete(step())
