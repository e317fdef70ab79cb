"""Rate-limit expensive work to a fixed share of one core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """Delay the next run of a piece of work in proportion to the CPU time of the last one; the first is due at once."""

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            share: Of one core, such as 0.001.
            clock: Seconds that have passed.
            spent: Seconds of one core that this thread has used.
        """
        self._share, self._clock, self._spent = share, clock, spent
        self._next = float("-inf")

    @property
    def due(self) -> bool:
        """Whether the work may run now."""
        return self._clock() >= self._next

    def do(self, work: Callable[[], T]) -> T:
        """Run it, due or not, and note what it cost."""
        before = self._spent()
        try:
            return work()
        finally:
            self._next = self._clock() + (self._spent() - before) / self._share
