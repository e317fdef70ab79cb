"""Count entries in shared folders: shared memory and temporary files.

A folder does not record who created an entry, and other processes use it too. The plugin therefore lets the test rest
(pauses it) for a while, to see which entries arrive without it. Readings are numbered by row: row 0 is the start level,
and each iteration adds a row. An entry is attributed as follows:

- Created by Python in this process since the test began (`audit_events`; but for threads that ran before), or in use by
  this process or a descendant: it counts.
- Owned by another user, or in use or created (`fanotify`, where available) by another process: it does not count.
- Of unknown origin: it counts, unless it arrives while the test rests, or its name resembles the names of such entries.
  Those still count if they arrive faster while the test runs than chance allows. This is not certain, so
  `Folder.set_aside` holds the entries that are left out for their names, and the verdict mentions them.
"""

from __future__ import annotations

import os
import re
import tempfile
from array import array
from collections import Counter
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.entry_provenance import Provenance
from pytest_leakcheck.probes.folder_users import used_by_others, used_here

# Duration of a slow listing in nanoseconds: a folder of 30,000 entries takes this long. After a slower listing that
# adds no entry that counts, no listing is due for the same duration. While other processes keep changing the folder,
# slow listings thus take at most half of the time.
_SLOW_LISTING_NS: Final = 10_000_000
# A run of hexadecimal digits with at least one decimal digit, and the random end of a name made by `tempfile` or
# `multiprocessing`.
_HEX_NUMBER: Final = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_RANDOM_END: Final = re.compile(r"[0-9a-z_]{1,8}(?=(\.[a-z]{1,4})?$)")
# The accepted probability of attributing other processes' entries to the test (significance level).
_SIGNIFICANCE: Final = 0.001


@dataclass(frozen=True, slots=True)
class SetAside:
    """Entries that do not count, because similar names also arrive while the test rests; the creators are unknown.

    Of those that still exist, ``working`` counts those that arrived while the test ran, and ``resting`` those that
    arrived during a rest, or by a thread that creates such entries then too. ``kinds`` are the patterns of the former.
    """

    working: int
    resting: int
    kinds: tuple[str, ...]


class Folder:
    """``shm`` or ``disk``: entries added since the start that still exist, without those known to be other processes'.

    Resolution: one entry; subfolders are not searched. Noise: other processes' entries, see `rested`; `others` maps
    patterns of their names to an example. Cost: none while nothing changes (`probes.folder_changes`), otherwise one
    listing. Scope: the machine. Fallback: without /dev/shm (macOS, Windows) ``shm`` is unavailable.
    """

    def __init__(self, resource: str, path: str) -> None:
        self.resource = resource
        self.path = path
        self.others: dict[str, str] = {}
        self.count = 0
        self.changed = False
        # Dicts in place of sets, because the plugin counts the objects that the garbage collector tracks. Up to Python
        # 3.13, these do not include a dict of strings and ints.
        self._known: dict[str, None] = {}
        self._arrived: dict[str, int] = {}
        # Entries attributed to other processes by their name: the row in which they arrived, or -1 if during a rest.
        self._aside: dict[str, int] = {}
        # Name patterns of entries created during a rest by threads that were already running before the test.
        self._background_patterns: dict[str, None] = {}
        self.provenance = Provenance(path)
        # Removed entries that counted: name, row of arrival, row of removal.
        self._gone: list[tuple[str, int, int]] = []
        self._resting_arrivals: Counter[str] = Counter()
        # The earliest time of the next listing in nanoseconds (0: at once). In an array, because an int would be a
        # memory block of the plugin.
        self._next_listing_ns = array("q", (0,))

    def open(self) -> None:
        """Record the current entries as the start state; raise `Unavailable` if the folder cannot be listed."""
        try:
            self.restart()
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be watched here ({error})") from None

    def follow_makers(self) -> None:
        self.provenance.follow()

    def close(self) -> None:
        self.provenance.close()

    def restart(self) -> None:
        """Take the current entries as the start state and forget everything else."""
        self._known = dict.fromkeys(os.listdir(self.path))
        self._arrived.clear()
        self._aside.clear()
        self._background_patterns.clear()
        self.provenance.restart()
        self._gone.clear()
        self._resting_arrivals.clear()
        self.count = 0
        self.changed = False
        self._next_listing_ns[0] = 0

    def kinds(self) -> list[str]:
        """Return the folder's path with a name pattern, for each counted entry; similar names have the same pattern."""
        common = Counter(kind for name in self._arrived for kind in name_patterns(name))
        return [f"{self.path}/{max(name_patterns(name), key=common.__getitem__)}" for name in self._arrived]

    def names(self) -> list[str]:
        return list(self._arrived)

    @property
    def own(self) -> int:
        """The number of counted entries that Python in this process created, or that this process tree uses."""
        return sum(1 for name in self._arrived if name in self.provenance.own)

    @property
    def made_here(self) -> int:
        """The number of counted entries known to come from this process tree."""
        return sum(1 for name in self._arrived if name in self.provenance.own or name in self.provenance.native)

    @property
    def set_aside(self) -> SetAside:
        """A summary of the entries that do not count, although this process tree might have created them."""
        working = [name for name, row in self._aside.items() if row >= 0 and not self._is_from_background(name)]
        kinds = {kind for name in working for kind in name_patterns(name) if kind in self.others}
        return SetAside(len(working), len(self._aside) - len(working), tuple(sorted(kinds)))

    def relist(self, row: int, *, resting: bool = False) -> None:
        """List the folder, and record under this row which entries have arrived and which are gone."""
        began = clock.monotonic_ns()
        self.changed = False
        now = dict.fromkeys(os.listdir(self.path))
        for name in [name for name in self._arrived if name not in now]:
            self._gone.append((name, self._arrived.pop(name), row))
        for name in [name for name in self._aside if name not in now]:
            del self._aside[name]
        new = now.keys() - self._known.keys()
        makers = self.provenance.take_makers(new)
        for name in new:
            origin = self.provenance.attribute(name, makers)
            if origin == "elsewhere":
                continue
            if origin == "unknown" and self._resembles_others(name):
                self._aside[name] = -1 if resting else row
                continue
            if origin == "unknown":
                self.provenance.own.pop(name, None)
            self._arrived[name] = row
        self.provenance.listed(now, makers)
        # An entry that is missing in one listing counts as new in the next listing that shows it.
        self._known = now
        risen, self.count = len(self._arrived) > self.count, len(self._arrived)
        ended = clock.monotonic_ns()
        self._next_listing_ns[0] = 2 * ended - began if ended - began > _SLOW_LISTING_NS and not risen else 0

    def rested(self, row: int, seconds: float, worked: float) -> bool:
        """List the folder after a rest; what arrived in it does not count, unless Python created it in this process.

        ``seconds`` and ``worked`` are the total seconds of rest and of work since the start. Return whether a new name
        pattern was attributed to other processes: then the counts of all rows change, and the caller must `recount`.
        """
        known = dict(self._arrived)
        self.relist(row, resting=True)
        arrived = [name for name in self._arrived if name not in known and name not in self.provenance.own]
        self._resting_arrivals.update(kind for name in arrived for kind in name_patterns(name))
        self._background_patterns |= dict.fromkeys(
            kind for name in arrived if name in self.provenance.by_earlier_thread for kind in name_patterns(name)
        )
        before = (*known, *(gone[0] for gone in self._gone))
        working = Counter(kind for name in before if name not in self.provenance.own for kind in name_patterns(name))
        share = worked / (worked + seconds)
        found = {
            kind: name
            for name in arrived
            for kind in name_patterns(name)
            if kind not in self.others
            and self._resting_arrivals[kind] > 1
            and not _exceeds_steady_arrivals(working[kind], self._resting_arrivals[kind], share)
        }
        self.others |= found
        for name in arrived:
            del self._arrived[name]
            self._aside[name] = -1
        if found:
            theirs = [
                name for name in self._arrived if name not in self.provenance.own and self._resembles_others(name)
            ]
            for name in theirs:
                self._aside[name] = self._arrived.pop(name)
            self._gone = [
                gone for gone in self._gone if gone[0] in self.provenance.own or not self._resembles_others(gone[0])
            ]
        self.count = len(self._arrived)
        return bool(found)

    def set_aside_used(self) -> bool:
        """Drop entries in use by other processes, count those in use here; return whether to `recount` all rows."""
        unknown = [
            name for name in self._arrived if name not in self.provenance.own and name not in self.provenance.native
        ]
        asked = [*unknown, *(name for name, row in self._aside.items() if row >= 0)]
        if not asked:
            return False
        theirs = used_by_others(self.path, asked)
        ours = used_here(self.path, asked) - theirs
        for name in theirs:
            self._arrived.pop(name, None)
            self._aside.pop(name, None)
        for name in ours:
            self.provenance.own[name] = None
            if name in self._aside:
                self._arrived[name] = self._aside.pop(name)
        self.count = len(self._arrived)
        return bool(theirs or ours)

    def recount(self, column: array[int], last: int) -> None:
        """Rewrite the counts of rows 0 to `last`."""
        for row in range(last + 1):
            column[row] = 0
        present = ((name, first, last + 1) for name, first in self._arrived.items())
        for _name, first, until in (*self._gone, *present):
            for row in range(first, until):
                column[row] += 1

    def is_due(self, *, whole: bool) -> bool:
        """Return whether something has changed and, unless ``whole``, the pause after a slow listing is over."""
        return self.changed and (
            whole or not self._next_listing_ns[0] or clock.monotonic_ns() >= self._next_listing_ns[0]
        )

    def _is_from_background(self, name: str) -> bool:
        """Return whether a thread from before the test made the entry, and also makes such names during rests."""
        return name in self.provenance.by_earlier_thread and not self._background_patterns.keys().isdisjoint(
            name_patterns(name)
        )

    def _resembles_others(self, name: str) -> bool:
        return bool(self.others) and not self.others.keys().isdisjoint(name_patterns(name))


def watched_folders() -> tuple[Folder, ...]:
    """Return the folder of shared memory, which also holds named semaphores, and the temporary folder."""
    return Folder("shm", "/dev/shm"), Folder("disk", tempfile.gettempdir())  # noqa: S108 - the folder is only watched


def name_patterns(name: str) -> tuple[str, str]:
    """Return a name without its numbers, and without its random suffix; names generated alike have equal patterns."""
    return _HEX_NUMBER.sub("#", name), _RANDOM_END.sub("*", name)


def _exceeds_steady_arrivals(working: int, resting: int, share: float) -> bool:
    """Return whether a one-sided binomial test rejects steady arrivals; ``share`` is the part of the time at work."""
    total = working + resting
    here, there = log(share), log(1 - share)

    def chance(k: int) -> float:
        # In logarithms: the binomial coefficient of a few thousand exceeds the range of a float.
        ways = lgamma(total + 1) - lgamma(k + 1) - lgamma(total - k + 1)
        return exp(ways + k * here + (total - k) * there)

    return sum(map(chance, range(working, total + 1))) < _SIGNIFICANCE
