"""Limit expensive work to a fixed share of one CPU core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """A limit on the CPU time of repeated work, as a share of one core.

    After a run, the work is due again when the CPU time of that run, divided by the share, has passed. With a share of
    0.001, a run of 5 ms makes the next run due 5 s later.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """Create an allowance whose first run is due at once.

        Args:
            share: Share of one core, such as 0.001.
            clock: Returns a monotonic time in seconds.
            spent: Returns the CPU time that this thread has used, in seconds.
        """
        self._share, self._clock, self._spent = share, clock, spent
        self._next = float("-inf")

    @property
    def due(self) -> bool:
        """Whether the work may run now."""
        return self._clock() >= self._next

    def do(self, work: Callable[[], T]) -> T:
        """Run the work, whether or not it is due, and return its result.

        The CPU time of this run determines when the next run is due.
        """
        before = self._spent()
        try:
            return work()
        finally:
            self._next = self._clock() + (self._spent() - before) / self._share
