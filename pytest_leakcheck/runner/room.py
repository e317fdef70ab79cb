"""Notice that a repetition is about to take too much of the machine: memory, shared memory, or space on a disk.

A test that keeps 150 MiB would take 5 GiB until the cause is known, and the kernel would end the session.
"""

from __future__ import annotations

from array import array
from contextlib import suppress

# The function itself: a test may replace that of the module.
from os import getpid
from typing import Final, NamedTuple

from pytest_leakcheck.model.resources import RESIDENT
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.folders import watched_paths
from pytest_leakcheck.probes.memory import resident_of
from pytest_leakcheck.probes.resource_limits import free_on, memory_left

# A repetition may take this share of what is left when it begins.
_SHARE: Final = 0.25
# To look takes 0.2 ms. In this many seconds between two looks, no program takes much.
_INTERVAL: Final = 0.02


class Used(NamedTuple):
    """What a repetition has taken of one kind of room, in bytes; `left` is from before, `resource` is what counts it."""

    resource: str
    taken: int
    left: int
    what: str

    def __str__(self) -> str:
        return f"{format_amount(self.taken, 'bytes')} of {format_amount(self.left, 'bytes')} of {self.what}"


class Room:
    """What is left when the first iteration has ended: what a test needs once, it may have."""

    def __init__(self) -> None:
        self._folders = {name: path for name, path in watched_paths().items() if free_on(path)}
        self._left: dict[str, int] = {}
        self._resident = 0
        # In arrays, because new objects would be blocks that the harness allocates.
        self._iterations, self._due = array("q", (0,)), array("d", (0.0,))

    def iteration_done(self) -> Used | None:
        """Return what leaves no room for another iteration; None if there is enough, or nothing is known."""
        self._iterations[0] += 1
        if clock.monotonic() < self._due[0]:
            return None
        # A test may have replaced what this takes.
        with suppress(Exception):
            if not self._left:
                self._resident = resident_of(getpid())
                self._left = {RESIDENT: memory_left(), **{name: free_on(path) for name, path in self._folders.items()}}
                self._iterations[0] = 0
            used = [self._look(name) for name in self._left]
            self._due[0] = clock.monotonic() + _INTERVAL
            return next(filter(None, used), None)
        return None

    def _look(self, name: str) -> Used | None:
        left, what = self._left[name], "memory"
        if name == RESIDENT:
            taken, now = max(0, resident_of(getpid()) - self._resident), memory_left()
            # Others may have taken some meanwhile.
            left = min(left, now + taken) if now else 0
        else:
            what = self._folders[name]
            taken = left - free_on(what)
        next_one = taken / max(1, self._iterations[0])
        return Used(name, taken, left, what) if left > 0 and taken + next_one > _SHARE * left else None
