"""Entries of folders that the whole machine shares: shared memory, and the temporary folder.

A folder does not say who made an entry, and others use it too. What Python made in this process is known (`probes.audit_events`), and
so is what this process has in use. What belongs to another user, or what another process has in use or has made (`fanotify`,
where it may be asked), is that one's. Of the rest nobody knows. What arrives while the test rests is made by somebody else, and so, probably, is what else has a name of
that kind: unless names of that kind come faster while the test runs than chance allows. That is not certain, so they are
remembered (`Folder.set_aside`) and the verdict says so.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Final

from pytest_leakcheck.probes.audit_events import MadeHere
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.fanotify import Children, Makers, is_here, is_stranger
from pytest_leakcheck.probes.folder_users import used_by_others, used_here
from pytest_leakcheck.probes.processes import thread_ids

# A listing that takes longer than 10 ms (30,000 entries do) may take half of the time at most, where others keep changing
# the folder and nothing comes that counts.
_DEAR: Final = 10_000_000
# Runs of hexadecimal digits, and the end of a name as `tempfile` and `multiprocessing` make it up.
_NUMBER: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_RANDOM: Final = re.compile(r"[0-9a-z_]{1,8}(?=(\.[a-z]{1,4})?$)")
# The chance to take what others make for the test's own.
_ALPHA: Final = 0.001


@dataclass(frozen=True, slots=True)
class SetAside:
    """Entries that do not count since names like theirs also come while the test rests; nobody knows who made them.

    Attributes:
        working: How many came while the test ran, and are still there.
        resting: How many came while it rested, and are still there.
        kinds: Their kinds of names.
    """

    working: int
    resting: int
    kinds: tuple[str, ...]


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
        # Those of them that were made here, gone ones included.
        self._own: dict[str, None] = {}
        # What is others' by its kind of name: the row in which it came, -1 where that was during a rest.
        self._aside: dict[str, int] = {}
        # Made by threads that were there before the test, and the kinds of what they made while it rested.
        self._by_earlier: dict[str, None] = {}
        self._background: dict[str, None] = {}
        self._made: MadeHere | None = None
        # As the kernel reports it: makers of entries that are not listed yet, and what came from here without Python.
        self._makers: Makers | None = None
        self._children = Children()
        self._pending: dict[str, int] = {}
        self._native: dict[str, None] = {}
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

    def follow_makers(self) -> None:
        """From now on, know what Python makes in this process and, where the kernel allows it, what other processes make."""
        self._made = MadeHere()
        self._made.start(map(int, thread_ids()))
        with contextlib.suppress(OSError):
            self._makers = Makers(self.path)

    def close(self) -> None:
        """Follow nothing any longer."""
        if self._made is not None:
            self._made.stop()
            self._made = None

    def restart(self) -> None:
        """What is there now was there before."""
        self._known = dict.fromkeys(os.listdir(self.path))
        self._arrived.clear()
        self._own.clear()
        self._aside.clear()
        self._by_earlier.clear()
        self._background.clear()
        self._pending.clear()
        self._native.clear()
        self._children = Children()
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

    @property
    def own(self) -> int:
        """How many of those that count Python is known to have made in this process."""
        return sum(1 for name in self._arrived if name in self._own)

    @property
    def made_here(self) -> int:
        """How many of those that count this process or one below it is known to have made."""
        return sum(1 for name in self._arrived if name in self._own or name in self._native)

    @property
    def set_aside(self) -> SetAside:
        """What does not count, but might have been made here."""
        working = [name for name, row in self._aside.items() if row >= 0 and not self._is_of_background(name)]
        kinds = {kind for name in working for kind in _kinds(name) if kind in self.others}
        return SetAside(len(working), len(self._aside) - len(working), tuple(sorted(kinds)))

    def relist(self, row: int, *, resting: bool = False) -> None:
        """List the folder; arrivals and departures are remembered as of this row."""
        began = time.monotonic_ns()
        self.changed = False
        now = dict.fromkeys(os.listdir(self.path))
        for name in [name for name in self._arrived if name not in now]:
            self._gone.append((name, self._arrived.pop(name), row))
        for name in [name for name in self._aside if name not in now]:
            del self._aside[name]
        new = now.keys() - self._known.keys()
        makers = self._take_makers(new)
        for name in new:
            self._native.pop(name, None)
            if self._made is not None and self._made.by_earlier_thread(name):
                self._by_earlier[name] = None
            if self._made is not None and name in self._made:
                self._own[name] = None
                self._arrived[name] = row
            elif self._is_anothers(name) or self._is_strangers(name, makers):
                continue
            elif self._is_of_others(name):
                self._aside[name] = -1 if resting else row
            else:
                self._own.pop(name, None)
                self._arrived[name] = row
        if self._made is not None:
            self._made.listed()
        self._pending = {name: process for name, process in makers.items() if name not in now}
        # A name that comes again is new again.
        self._known = now
        risen, self.count = len(self._arrived) > self.count, len(self._arrived)
        ended = time.monotonic_ns()
        self._next[0] = 2 * ended - began if ended - began > _DEAR and not risen else 0

    def rested(self, row: int, seconds: float, worked: float) -> bool:
        """List again after the test has rested: what has arrived meanwhile is not its own, unless it was made here.

        Args:
            row: The row to come.
            seconds: How long it has rested in all since the start.
            worked: How long it has run in all since the start.

        Returns:
            Whether a new kind of name turned out to be made by others; then the counts of all rows change (`recount`).
        """
        known = dict(self._arrived)
        self.relist(row, resting=True)
        arrived = [name for name in self._arrived if name not in known and name not in self._own]
        self._resting.update(kind for name in arrived for kind in _kinds(name))
        self._background |= dict.fromkeys(kind for name in arrived if name in self._by_earlier for kind in _kinds(name))
        before = (*known, *(gone[0] for gone in self._gone))
        working = Counter(kind for name in before if name not in self._own for kind in _kinds(name))
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
            self._aside[name] = -1
        if found:
            theirs = [name for name in self._arrived if name not in self._own and self._is_of_others(name)]
            for name in theirs:
                self._aside[name] = self._arrived.pop(name)
            self._gone = [gone for gone in self._gone if gone[0] in self._own or not self._is_of_others(gone[0])]
        self.count = len(self._arrived)
        return bool(found)

    def set_aside_used(self) -> bool:
        """Take off what other processes have in use, and count what this one has.

        Returns:
            Whether there was any; then the counts of all rows change.
        """
        unknown = [name for name in self._arrived if name not in self._own and name not in self._native]
        asked = [*unknown, *(name for name, row in self._aside.items() if row >= 0)]
        if not asked:
            return False
        theirs = used_by_others(self.path, asked)
        ours = used_here(self.path, asked) - theirs
        for name in theirs:
            self._arrived.pop(name, None)
            self._aside.pop(name, None)
        for name in ours:
            self._own[name] = None
            if name in self._aside:
                self._arrived[name] = self._aside.pop(name)
        self.count = len(self._arrived)
        return bool(theirs or ours)

    def recount(self, column: array[int], last: int) -> None:
        """Write the counts of rows 0 ... `last` again."""
        for row in range(last + 1):
            column[row] = 0
        present = ((name, first, last + 1) for name, first in self._arrived.items())
        for _name, first, until in (*self._gone, *present):
            for row in range(first, until):
                column[row] += 1

    def is_due(self, *, whole: bool) -> bool:
        """Whether to list: something has changed, and, unless ``whole``, the last listing is paid for."""
        return self.changed and (whole or not self._next[0] or time.monotonic_ns() >= self._next[0])

    def _take_makers(self, new: Collection[str]) -> dict[str, int]:
        """By name, the process that made it."""
        if self._makers is None:
            return {}
        made = self._pending | self._makers.take()
        # The report follows the entry.
        return made if all(name in made for name in new) else made | self._makers.take()

    def _is_strangers(self, name: str, makers: Mapping[str, int]) -> bool:
        """Whether another process made it, none of this one's."""
        if name not in makers:
            return False
        if is_stranger(makers[name], self._children):
            return True
        if is_here(makers[name]):
            self._native[name] = None
        return False

    def _is_anothers(self, name: str) -> bool:
        """Whether it belongs to another user."""
        if not hasattr(os, "geteuid"):
            return False
        try:
            return os.lstat(f"{self.path}/{name}").st_uid != os.geteuid()
        except OSError:
            # Gone by now: the next listing shows it.
            return False

    def _is_of_background(self, name: str) -> bool:
        """Whether a thread made it that was there before the test, and makes such entries while it rests."""
        return name in self._by_earlier and not self._background.keys().isdisjoint(_kinds(name))

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
