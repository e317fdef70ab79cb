"""Limit expensive work to a fixed share of one CPU core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """A limit on the CPU time of repeated work, as a share of one core; the first run is due at once.

    The next run is due after the CPU time of the last one, divided by the share: with 0.001, 5 s after 5 ms.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._share, self._clock, self._spent = share, clock, spent
        self._next = float("-inf")

    @property
    def due(self) -> bool:
        return self._clock() >= self._next

    def do(self, work: Callable[[], T]) -> T:
        """Run the work, whether or not it is due, and return its result."""
        before = self._spent()
        try:
            return work()
        finally:
            self._next = self._clock() + (self._spent() - before) / self._share
