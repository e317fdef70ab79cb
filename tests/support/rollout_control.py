"""Executors for a test, workflows that it steers from its own thread, and what runs beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakcheck_incidents.rollout_executor.executor import WorkflowExecutor
from leakcheck_incidents.rollout_executor.staleness import Limits

HUGE = 1 << 40


class Broken(Exception):
    """What a workflow of a test fails with."""


def running() -> tuple[set[threading.Thread], list[str]]:
    """The threads, and the numbers of the open descriptors."""
    return set(threading.enumerate()), sorted(one.name for one in Path("/proc/self/fd").iterdir())


def executor_of(limits: Limits, version: Callable[[], int] = lambda: 0, **more: Any) -> WorkflowExecutor[int]:
    """One that has begun, in a world of one."""
    executor: WorkflowExecutor[int] = WorkflowExecutor(limits, version, **more)
    executor.initialize(1)
    return executor


class Controlled:
    """Begins, and gives what `end` says; or is cancelled.

    Attributes:
        began: Set once it runs.
    """

    def __init__(self) -> None:
        self.began = threading.Event()
        self._told = threading.Event()
        self._value: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None

    async def __call__(self) -> int | None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.began.set()
        if not self._told.is_set():
            await self._ended.wait()
        return self._value

    def end(self, value: int | None) -> None:
        """Have it give this value, at once or as soon as it runs."""
        self._value = value
        self._told.set()
        if self.began.is_set() and self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
