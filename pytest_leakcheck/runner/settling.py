"""Wait for resources that end by themselves, and rest to measure growth without the test."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Final

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.folders import Folder
from pytest_leakcheck.probes.processes import TREE, Tree
from pytest_leakcheck.runner.samples import Rows

# Seconds to wait for threads, processes and tasks that end by themselves a little later (executors and resolvers take
# up to 2 s); only when a counter is above its start level. Descriptors or files alone are rarely released later, so
# they get less time. In a process of one thread, without children, nothing could release a descriptor: no wait then.
_SETTLE_SECONDS: Final = 2.0
_SETTLE_ALONE_SECONDS: Final = 0.25
# `Thread.join` returns before the kernel has released the thread. So the count of threads is read up to this many times
# more, this many seconds apart, and no longer once that was in vain in `IN_VAIN` rows.
_MAX_JOIN_CHECKS: Final = 20
_JOIN_CHECK_SECONDS: Final = 0.00005
IN_VAIN: Final = 3


class Settling(Rows):
    """Rows of a process that can wait or rest between iterations.

    Attributes:
        folders: The folders of shared memory and temporary files, by resource.
    """

    folders: dict[str, Folder]
    _tree: Tree
    _folder_columns: list[tuple[Folder, array[int]]]
    _reads: dict[str, Callable[[], int]]

    def __init__(self, capacity: int) -> None:
        """Start without columns.

        Args:
            capacity: The maximum number of rows.
        """
        super().__init__(capacity)
        self._waited_in_vain = False
        self._joins_in_vain = 0

    def _start_clocks(self) -> None:
        self._began = time.perf_counter()
        self._worked = time.process_time(), time.thread_time()
        self._rested = 0.0

    def _read_one(self, resource: str) -> int:
        """Return the current reading of one counter."""
        raise NotImplementedError

    def _read_collected(self, resource: str) -> int:
        """Return the current reading of one counter after a garbage collection."""
        raise NotImplementedError

    def settle(self) -> bool:
        """Wait while a countable (exactly counted) resource is above its start level, and correct the last row.

        Returns:
            Whether any counter fell.
        """
        pause, waited, fell = 0.001, 0.0, False
        scarce = [*TREE, *self.folders, *(name for name in self._reads if find_resource(name).ends_by_itself)]
        while not self._waited_in_vain:
            standing = [find_resource(name) for name in scarce if self.above_start(name) > 0]
            may_end = any(one.ends_by_itself for one in standing)
            patience = _SETTLE_SECONDS if fell or may_end else _SETTLE_ALONE_SECONDS
            own = not may_end and all(one.of_tree for one in standing)
            if not standing or waited >= patience or (own and self._is_alone()):
                break
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, 0.1)
            tree = self._tree.read()
            for name in scarce:
                value = tree[TREE.index(name)] if name in TREE else self._read_one(name)
                if value < self._columns[name][self.n]:
                    self._columns[name][self.n], fell = value, True
        self._waited_in_vain |= not fell and waited > 0
        return fell

    def _await_joined(self, threads: int) -> tuple[int, int, int]:
        """Read the tree until it has at most this many threads, or about a millisecond has passed."""
        self._joins_in_vain += 1
        tree = self._tree.read()
        for _ in range(_MAX_JOIN_CHECKS):
            _fds, running, _processes = tree
            if running <= threads:
                self._joins_in_vain = 0
                break
            time.sleep(_JOIN_CHECK_SECONDS)
            self._rested += _JOIN_CHECK_SECONDS
            tree = self._tree.read()
        return tree

    def _is_alone(self) -> bool:
        """Return whether no other thread or child process exists that could close a descriptor."""
        _fds, threads, processes = self._tree.read()
        return threads == 1 and processes == 0

    def rest(self, seconds: float, resource: str) -> int:
        """Rest without running the test, and return how far a counter rises in that time.

        Entries that arrive in a shared folder during the rest are not the test's and do not count.
        """
        if resource in self.folders:
            self._sleep(seconds)
            return self._read_one(resource) - self.level(resource)
        # Read in the same way before and after: objects made to examine the suspicion are part of both readings.
        before = self._read_collected(resource)
        time.sleep(seconds)
        self._rested += seconds
        return self._read_collected(resource) - before

    def set_aside_used(self, resource: str) -> None:
        """Remove entries that other processes have in use from all rows of a shared folder."""
        for folder, column in self._folder_columns:
            if folder.resource == resource and folder.set_aside_used():
                folder.recount(column, self.n)

    def _sleep(self, seconds: float) -> None:
        """Sleep; remove entries that arrive in shared folders from all rows, and others with names of the same kind."""
        time.sleep(seconds)
        self._rested += seconds
        worked = time.perf_counter() - self._began - self._rested
        for folder, column in self._folder_columns:
            if folder.rested(self.n + 1, self._rested, worked):
                folder.recount(column, self.n)

    def seconds_per_iteration(self) -> float:
        """Return the mean time of an iteration, without waits and rests."""
        return (time.perf_counter() - self._began - self._rested) / max(1, self.n)

    def share_of_other_threads(self) -> float:
        """Return the share of other threads in the CPU time since the start, 0 to 1; ended threads count too."""
        total, own = time.process_time() - self._worked[0], time.thread_time() - self._worked[1]
        return max(0.0, 1 - own / total) if total > 0 else 0.0
