"""Dear work, done as often as a share of one core allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """Lets a piece of work be done when what it cost last time has been saved up again.

    The first time is free, since nobody knows yet what it costs. So over a long watch the work takes at most the share, and
    what becomes dear becomes rare.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            share: Of one core, such as 0.0001.
            clock: Seconds that have passed.
            spent: Seconds of one core that this thread has used.
        """
        self._share, self._clock, self._spent = share, clock, spent
        self._due = float("-inf")

    @property
    def due(self) -> bool:
        """Whether it may be done now."""
        return self._clock() >= self._due

    def do(self, work: Callable[[], T]) -> T:
        """Do it, due or not, and note what it cost."""
        before = self._spent()
        try:
            return work()
        finally:
            self._due = self._clock() + (self._spent() - before) / self._share
