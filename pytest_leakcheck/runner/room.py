"""Notice that a repetition is about to take too much of the machine.

What may run out are memory, disks, descriptors, processes and threads. A test that keeps 150 MiB
would take 5 GiB until the cause is known, and the kernel would end the session.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from os import stat
from pathlib import Path
from typing import Final, NamedTuple

from pytest_leakcheck.model.resources import CHILDREN, DESCRIPTORS, DISK, RESIDENT, THREADS
from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.folders import watched_paths
from pytest_leakcheck.probes.memory import resident_of
from pytest_leakcheck.probes.own_descriptors import descriptors_left
from pytest_leakcheck.probes.processes import count_tasks, own_tree
from pytest_leakcheck.probes.resource_limits import free_on, memory_left, tasks_left

# A repetition may take this share of what is left when it begins: of descriptors, which no other
# process needs, more.
_SHARE: Final = 0.25
_SHARE_OF_DESCRIPTORS: Final = 0.5
# No more handles than this are compared with what is left: below a low limit, a leak is certain
# once it is reached. The plugin itself opens fewer descriptors.
_FEW: Final = 64
# A look takes 0.03 ms, and 1 ms with eight children. So it waits for this many seconds for each
# process, but not longer than for this share of the iterations that fit: descriptors are opened in
# microseconds.
_INTERVAL: Final = 0.02
_WAITING_SHARE: Final = 0.25
# About so many iterations name the cause of a leak.
_SEARCH_ITERATIONS: Final = 20


class Used(NamedTuple):
    """What a repetition took of something with so much left before; `resource` counts it."""

    resource: str
    taken: int
    left: int
    unit: Unit
    what: str

    def __str__(self) -> str:
        return f"{format_amount(self.taken, self.unit)} of {format_amount(self.left, self.unit)} {self.what}"

    def fits(self, iterations: int) -> float:
        """Return how many more iterations may follow, if each takes as much as so many have."""
        share = _SHARE_OF_DESCRIPTORS if self.resource == DESCRIPTORS else _SHARE
        return (share * self.left - self.taken) * iterations / self.taken

    @property
    def is_much(self) -> bool:
        return self.unit == "bytes" or self.taken > _FEW


@dataclass(frozen=True, slots=True)
class Store:
    """Something that runs out.

    `left` reads how much of it is left, and `left_before` is what it read at the start; infinity if
    `held` is exact. `held` counts what some processes have of it, which tells those of the test
    from other programs; a fork has the pages of its parent, so of memory these are too many.
    """

    resource: str
    what: str
    unit: Unit
    left: Callable[[], int]
    left_before: float = inf
    held: Callable[[Sequence[int]], int] | None = None
    held_before: int = 0

    def look(self, tree: Sequence[int]) -> Used | None:
        """Return what has been taken since the start; None if that is nothing."""
        grown = inf if self.held is None else self.held(tree) - self.held_before
        if grown <= 0:
            return None
        now = self.left()
        taken = int(min(grown, self.left_before - now))
        # Others may have taken some meanwhile.
        return Used(self.resource, taken, now + taken, self.unit, self.what) if taken > 0 else None


class Room:
    """What is left when the first iteration has ended: what a test needs once, it may have.

    Attributes:
        ended: What leaves no room for another iteration; None if there is enough, or nothing is
            known.
        short: Whether there is no room for the iterations that it takes to find the cause of a
            leak.
    """

    def __init__(self) -> None:
        self.ended: Used | None = None
        self.short = False
        self._stores: tuple[Store, ...] = ()
        # The number of iterations, and from which one or from when on a look is due. In arrays,
        # because new objects would be blocks that the harness allocates.
        self._iterations, self._due = array("q", (0,)), array("d", (0.0, 0.0))

    def iteration_done(self) -> Used | None:
        """Return `ended`, after a look if one is due."""
        self._iterations[0] += 1
        if self._iterations[0] < self._due[0] and clock.monotonic() < self._due[1]:
            return None
        # A test may have replaced what this takes.
        with suppress(Exception):
            tree = own_tree()
            if self._stores:
                self._look(tree, self._iterations[0])
            else:
                self._stores = tuple(_find_stores(tree))
                self._iterations[0] = 0
            self._due[1] = clock.monotonic() + _INTERVAL * len(tree)
        return self.ended

    def _look(self, tree: Sequence[int], iterations: int) -> None:
        taken = [used for store in self._stores if (used := store.look(tree)) is not None]
        self._due[0] = iterations + _WAITING_SHARE * min(
            (used.fits(iterations) for used in taken), default=inf
        )
        much = [used for used in taken if used.is_much]
        self.short = any(used.fits(iterations) < _SEARCH_ITERATIONS for used in much)
        self.ended = next((used for used in much if used.fits(iterations) < 1), None)


def _find_stores(tree: Sequence[int]) -> Iterator[Store]:
    yield Store(
        RESIDENT, "of memory", "bytes", memory_left, memory_left(), _resident, _resident(tree)
    )
    yield Store(
        DESCRIPTORS, "descriptors (ulimit -n)", "count", descriptors_left, descriptors_left()
    )
    for name, held in ((CHILDREN, len), (THREADS, _count_threads)):
        yield Store(
            name, "processes and threads", "count", tasks_left, held=held, held_before=held(tree)
        )
    devices = set()
    for name, path in (*watched_paths().items(), (DISK, ".")):
        # The test may have removed it.
        with suppress(OSError):
            folder = str(Path(path).absolute())
            device = stat(folder).st_dev  # noqa: PTH116 - a test may replace that of `Path`
            if device not in devices:
                devices.add(device)
                yield from _find_stores_on(folder, name)


def _find_stores_on(folder: str, name: str) -> Iterator[Store]:
    size, entries = free_on(folder)
    yield Store(name, f"of {folder}", "bytes", lambda: free_on(folder)[0], size)
    yield Store(name, f"entries of {folder}", "count", lambda: free_on(folder)[1], entries)


def _resident(tree: Sequence[int]) -> int:
    return sum(map(resident_of, tree))


def _count_threads(tree: Sequence[int]) -> int:
    return sum(map(count_tasks, tree))
