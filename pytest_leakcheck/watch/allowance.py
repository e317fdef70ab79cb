"""Dear work, done as often as a share of one core allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Allowance:
    """Lets a piece of work be done when what it cost last time has been saved up.

    Some is there at the start, so that the first minute of a watch tells more; after that the work takes at most the share,
    and what becomes dear becomes rare. The first time is free, since nobody knows yet what it costs.
    """

    def __init__(
        self,
        share: float,
        credit: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            share: Of one core, such as 0.0001.
            credit: Seconds of one core that are there at the start, and the most that is ever saved beyond the next time.
            clock: Seconds that have passed.
            spent: Seconds of one core that this thread has used.
        """
        self._share, self._clock, self._spent = share, clock, spent
        self._most = self._saved = credit
        self._cost = 0.0
        self._at = clock()

    @property
    def due(self) -> bool:
        """Whether it may be done now."""
        now = self._clock()
        self._saved = min(max(self._most, self._cost), self._saved + (now - self._at) * self._share)
        self._at = now
        return self._saved >= self._cost

    def charge(self, seconds: float) -> None:
        """Take off what other work has cost that shares this allowance. The debt is never more than the most that is saved."""
        self._saved = max(self._saved - seconds, -max(self._most, self._cost))

    def do(self, work: Callable[[], T]) -> T:
        """Do it, due or not, and note what it cost."""
        before = self._spent()
        try:
            return work()
        finally:
            self._cost = self._spent() - before
            self._saved -= self._cost
