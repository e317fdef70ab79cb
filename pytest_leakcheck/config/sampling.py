"""Choose the tests of a session to judge, and estimate their duration from earlier sessions."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Final

from pytest_leakcheck.model import InputError

_SAMPLE: Final = re.compile(r"([0-9]{1,18})/([0-9]{1,18})(?:@([0-9]{1,18}))?")
_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|h)?")
_SECONDS: Final = {None: 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
# A test may take this many times as long as in an earlier session.
_CAUTION: Final = 2.0
# The share of the tests that must have been measured before an estimate of all of them is made.
_MIN_KNOWN_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """Tests whose hash, modulo `parts`, is among `taken` successive numbers from `turn * taken` on.

    A test is in the same sample whatever else is selected. Any ``parts / taken`` successive turns
    cover all tests.
    """

    taken: int
    parts: int
    turn: int

    def takes(self, test: str) -> bool:
        return (_hash(test) - self.turn * self.taken) % self.parts < self.taken


@dataclass(frozen=True, slots=True)
class Cost:
    """What is known of a test from earlier sessions; `measured` is in seconds since the epoch."""

    seconds: float
    measured: float
    red: bool


def parse_sample(text: str) -> Sample:
    """Parse ``1/10@7``, the seventh tenth of the tests, or ``1/10``, a tenth by the day.

    Raise `InputError` if the text is invalid.
    """
    found = _SAMPLE.fullmatch(text)
    if found is None:
        raise InputError("expects a share such as 1/10, or 1/10@7 for the seventh turn")
    taken, parts = int(found[1]), int(found[2])
    if not 0 < taken <= parts:
        raise InputError(f"{taken}/{parts} is not a share of more than 0 and at most 1")
    return Sample(
        taken, parts, int(found[3]) if found[3] else dt.datetime.now(tz=dt.UTC).toordinal()
    )


def parse_duration(text: str) -> float:
    """Return the seconds of ``90``, ``90s``, ``10min`` or ``1.5h``.

    Raise `InputError` unless they are above 0.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not float(found[1]):
        raise InputError("expects a time above 0 such as 90s, 10min or 1.5h")
    return float(found[1]) * _SECONDS[found[2]]


def format_duration(seconds: float) -> str:
    """Format a duration for an estimate: ``40 s``, ``14 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def choose_case(tests: Collection[str]) -> str:
    """Return the case of a test that stands for all; the same in each session that collects it."""
    return min(tests, key=_hash)


class TimePlan:
    """The tests that a time suffices for, by what they took in earlier sessions.

    Urgent tests, which were never measured or were red, come first, then those that were measured
    longest ago. A test without a known cost counts as the median of the others.
    """

    def __init__(
        self, tests: Sequence[str], costs: Mapping[str, Cost], seconds: float, workers: int = 1
    ) -> None:
        """Choose from node ids in session order, by the time for all of them in each worker."""
        self._seconds, self._workers = seconds, workers
        usual = median(one.seconds for one in costs.values()) if costs else 0.0
        self._expected = {test: costs[test].seconds if test in costs else usual for test in tests}
        urgent = {test for test in tests if test not in costs or costs[test].red}
        by_turn = sorted(
            tests, key=lambda one: (one not in urgent, costs[one].measured if one in costs else 0.0)
        )
        before = accumulate((self._expected[test] for test in by_turn), initial=0.0)
        limit = seconds * workers
        self.chosen = frozenset(
            test for test, earlier in zip(by_turn, before, strict=False) if earlier < limit
        )
        self._urgent = urgent & self.chosen

    def allows(self, test: str, spent: float) -> bool:
        """Return whether to begin a chosen test after `spent` seconds of this worker.

        Ask in the order of the chosen tests.
        """
        # A test that is not urgent must leave time for the urgent ones that follow, even if all
        # take twice as long as before.
        if test in self._urgent:
            self._urgent.discard(test)
            return spent < self._seconds
        reserved = sum(self._expected[one] for one in self._urgent) / self._workers
        needed = _CAUTION * (self._expected[test] + reserved) if self._urgent else 0.0
        return spent + needed < self._seconds


class Forecast:
    """The expected seconds of each test that is still to run.

    A test without a known time counts as the median of the others, or, if no earlier session has
    measured any, as the mean of those that this session has measured.
    """

    def __init__(self, tests: Collection[str], seconds: Mapping[str, float]) -> None:
        """Take the tests to measure, and the seconds that some of them took in earlier sessions."""
        known = [seconds[test] for test in tests if test in seconds]
        self._usual = median(known) if len(known) >= max(1, _MIN_KNOWN_SHARE * len(tests)) else None
        self._left = {test: seconds.get(test) for test in tests}
        self.tests = len(tests)
        # How many tests have ended, and how long these took.
        self.done, self.spent = 0, 0.0

    def may_take(self, test: str, seconds: float) -> bool:
        """Return whether a test took so long in an earlier session, or its time is unknown."""
        expected = self._left.get(test)
        return expected is None or expected >= seconds

    def add(self, test: str) -> None:
        """Add a test that is to be measured."""
        self._left[test] = None
        self.tests += 1

    def drop(self, test: str) -> None:
        """Take away a test that is not to be measured after all."""
        if test in self._left:
            del self._left[test]
            self.tests -= 1

    def end(self, test: str, seconds: float) -> None:
        """Note that a test has ended, after this many seconds."""
        if test in self._left:
            del self._left[test]
            self.done += 1
            self.spent += seconds

    def seconds_left(self, test: str = "", elapsed: float = 0.0) -> float | None:
        """Return the expected seconds until all tests end, with `test` running; None if unknown."""
        usual = self.spent / self.done if self._usual is None and self.done else self._usual
        if usual is None:
            return None
        left = {name: usual if seconds is None else seconds for name, seconds in self._left.items()}
        return sum(left.values()) - min(elapsed, left.get(test, 0.0))


def _hash(test: str) -> int:
    return int.from_bytes(
        hashlib.sha256(test.encode(errors="backslashreplace")).digest()[:8], "big"
    )
