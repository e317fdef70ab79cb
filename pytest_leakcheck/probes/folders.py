"""Entries of folders that the whole machine shares: shared memory, and the temporary folder.

A folder does not say who made an entry, and others use it too. What another process has in use is that one's. What arrives
while the test rests is made by somebody else, and so is, by all accounts, what else has a name of that kind: unless names
of that kind come faster while the test runs than chance allows.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from array import array
from collections import Counter
from math import exp, lgamma, log
from typing import Final

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.users import used_by_others

# A listing that takes longer than 10 ms (30,000 entries do) may take half of the time at most, where others keep changing
# the folder and nothing comes that counts.
_DEAR: Final = 10_000_000
# Runs of hexadecimal digits, and the end of a name as `tempfile` and `multiprocessing` make it up.
_NUMBER: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_RANDOM: Final = re.compile(r"[0-9a-z_]{1,8}(?=(\.[a-z]{1,4})?$)")
# The chance to take what others make for the test's own.
_ALPHA: Final = 0.001


class Folder:
    """``shm`` or ``disk``: entries that arrived since the start, are still there, and are not known to be of others.

    Resolution: one entry; what lies deeper is not looked at. Noise: what other processes make, see `rested`. Cost: nothing
    while nothing changes (`changes`), else a listing. Scope: the machine. Fallback: without /dev/shm (macOS,
    Windows) ``shm`` is unavailable.

    Attributes:
        resource: ``shm`` or ``disk``.
        path: The folder.
        others: Kinds of names that others make, with an example of each.
        count: How many counted when the folder was last listed.
        changed: Something has come or gone since then.
    """

    def __init__(self, resource: str, path: str) -> None:
        self.resource = resource
        self.path = path
        self.others: dict[str, str] = {}
        self.count = 0
        self.changed = False
        # A dict of plain keys and values, unlike a set, is no work for the collector.
        self._known: dict[str, None] = {}
        self._arrived: dict[str, int] = {}
        self._gone: list[tuple[str, int, int]] = []
        self._resting: Counter[str] = Counter()
        # In nanoseconds: when to list next at the earliest (0: at once). A number kept as an object would be a block.
        self._next = array("q", (0,))

    def open(self) -> None:
        """Raises `Unavailable` where there is no such folder."""
        try:
            self.restart()
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be watched here ({error})") from None

    def restart(self) -> None:
        """What is there now was there before."""
        self._known = dict.fromkeys(os.listdir(self.path))
        self._arrived.clear()
        self._gone.clear()
        self._resting.clear()
        self.count = 0
        self.changed = False
        self._next[0] = 0

    def kinds(self) -> list[str]:
        """For each entry that counts its kind of name, with the folder: equal where names were made up alike."""
        common = Counter(kind for name in self._arrived for kind in _kinds(name))
        return [f"{self.path}/{max(_kinds(name), key=common.__getitem__)}" for name in self._arrived]

    def names(self) -> list[str]:
        """The entries that count."""
        return list(self._arrived)

    def relist(self, row: int) -> None:
        """List the folder; arrivals and departures are remembered as of this row."""
        began = time.monotonic_ns()
        self.changed = False
        now = dict.fromkeys(os.listdir(self.path))
        for name in [name for name in self._arrived if name not in now]:
            self._gone.append((name, self._arrived.pop(name), row))
        for name in now.keys() - self._known.keys():
            if not self._is_of_others(name):
                self._arrived[name] = row
        # A name that comes again is new again.
        self._known = now
        risen, self.count = len(self._arrived) > self.count, len(self._arrived)
        ended = time.monotonic_ns()
        self._next[0] = 2 * ended - began if ended - began > _DEAR and not risen else 0

    def rested(self, row: int, seconds: float, worked: float) -> bool:
        """List again after the test has rested: what has arrived meanwhile is not its own.

        Args:
            row: The row to come.
            seconds: How long it has rested in all since the start.
            worked: How long it has run in all since the start.

        Returns:
            Whether a new kind of name turned out to be made by others; then the counts of all rows change (`recount`).
        """
        known = set(self._arrived)
        self.relist(row)
        arrived = [name for name in self._arrived if name not in known]
        self._resting.update(kind for name in arrived for kind in _kinds(name))
        working = Counter(kind for name in (*known, *(gone[0] for gone in self._gone)) for kind in _kinds(name))
        share = worked / (worked + seconds)
        found = {
            kind: name
            for name in arrived
            for kind in _kinds(name)
            if kind not in self.others
            and self._resting[kind] > 1
            and not _too_many(working[kind], self._resting[kind], share)
        }
        self.others |= found
        for name in arrived:
            del self._arrived[name]
        if found:
            self._arrived = {name: first for name, first in self._arrived.items() if not self._is_of_others(name)}
            self._gone = [gone for gone in self._gone if not self._is_of_others(gone[0])]
        self.count = len(self._arrived)
        return bool(found)

    def set_aside_used(self) -> bool:
        """Take off what other processes have in use. Returns whether there was any; then the counts of all rows change."""
        used = used_by_others(self.path, self._arrived)
        for name in used:
            del self._arrived[name]
        self.count = len(self._arrived)
        return bool(used)

    def recount(self, column: array[int], last: int) -> None:
        """Write the counts of rows 0 ... `last` anew."""
        for row in range(last + 1):
            column[row] = 0
        present = ((name, first, last + 1) for name, first in self._arrived.items())
        for _name, first, until in (*self._gone, *present):
            for row in range(first, until):
                column[row] += 1

    def is_due(self, *, whole: bool) -> bool:
        """Whether to list: something has changed, and, unless ``whole``, the last listing is paid for."""
        return self.changed and (whole or not self._next[0] or time.monotonic_ns() >= self._next[0])

    def _is_of_others(self, name: str) -> bool:
        return bool(self.others) and not self.others.keys().isdisjoint(_kinds(name))


def watched_folders() -> tuple[Folder, ...]:
    """The folder of shared memory and named semaphores, and the temporary folder."""
    return Folder("shm", "/dev/shm"), Folder("disk", tempfile.gettempdir())  # noqa: S108 - named here to be watched


def _kinds(name: str) -> tuple[str, str]:
    """The name without its numbers, and without its random end: alike for names that were made up alike."""
    return _NUMBER.sub("#", name), _RANDOM.sub("*", name)


def _too_many(working: int, resting: int, share: float) -> bool:
    """Whether more arrived during work than a steady arrival from elsewhere explains (one-sided binomial test).

    Args:
        working: Arrivals while the test ran.
        resting: Arrivals while it rested.
        share: The share of the time that it ran.
    """
    total = working + resting
    here, there = log(share), log(1 - share)

    def chance(k: int) -> float:
        # By logarithms: the binomial coefficient of a few thousand is more than a float holds.
        ways = lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1)
        return exp(ways + k * here + (total - k) * there)

    return sum(map(chance, range(working, total + 1))) < _ALPHA
