"""Estimate how long the tests of a session take, by what they took in earlier sessions and so far in this one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean, median
from typing import Final

# The share of the tests that must have been measured before an estimate of all of them is made.
_MIN_KNOWN_SHARE: Final = 0.5
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
# From this many seconds or minutes on, the next unit is shown.
_MAX_SHOWN: Final = 100


class Forecast:
    """The expected seconds of each test that is still to run.

    A test without a known time counts as the median of the others, or, if no earlier session has measured any, as the
    mean of those that this session has measured.
    """

    def __init__(self, tests: Collection[str], seconds: Mapping[str, float]) -> None:
        """Take the tests that are to be measured, and the seconds that some of them took in earlier sessions."""
        known = [seconds[test] for test in tests if test in seconds]
        self._known = len(known) >= max(1, _MIN_KNOWN_SHARE * len(tests))
        self._usual = median(known) if known else 0.0
        self._left = {test: seconds.get(test, -1.0) for test in tests}
        self._measured: list[float] = []
        self.tests = len(tests)

    def expected(self, test: str) -> float:
        """Return how long a test took in an earlier session; 0 if that is unknown."""
        return max(0.0, self._left.get(test, 0.0))

    def end(self, test: str, seconds: float) -> None:
        """Note that a test has ended, after this many seconds."""
        if self._left.pop(test, None) is not None:
            self._measured.append(seconds)

    @property
    def done(self) -> int:
        return len(self._measured)

    def seconds_left(self, test: str = "", elapsed: float = 0.0) -> float | None:
        """Return the expected seconds until all tests have ended, with `test` running; None if too little is known."""
        if not self._known and not self._measured:
            return None
        usual = self._usual if self._known else fmean(self._measured)
        left = {name: seconds if seconds >= 0.0 else usual for name, seconds in self._left.items()}
        return sum(left.values()) - min(elapsed, left.get(test, 0.0))


def format_duration(seconds: float) -> str:
    """Format a duration for an estimate: ``40 s``, ``14 min``, ``2.5 h``."""
    if seconds < _MAX_SHOWN:
        return f"{seconds:.0f} s"
    if seconds < _MAX_SHOWN * _MINUTE:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h"
