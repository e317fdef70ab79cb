"""What a panel does when a test stands still: waiting for what is about to end by itself, and resting to see what goes on."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Final

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.folders import Folder
from pytest_leakcheck.probes.processes import TREE, Tree
from pytest_leakcheck.runner.samples import Rows

# Threads, processes and tasks that end by themselves a little later (executors and resolvers take up to 2 s) are waited
# for, only where something looks wrong. A descriptor or a file alone has hardly anybody who would see to it, so it gets
# less; a descriptor in a process of one thread, without children, has nobody at all.
_SETTLE: Final = 2.0
_SETTLE_ALONE: Final = 0.25
# `Thread.join` returns before the kernel has let go of the thread: looked at again so many times, after so many seconds
# each, and no more once that was in vain in so many rows.
_LOOKS: Final = 20
_MOMENT: Final = 0.00005
IN_VAIN: Final = 3


class Settling(Rows):
    """Rows of a process that can be left alone for a while.

    Attributes:
        folders: Shared memory and temporary files, by resource.
    """

    folders: dict[str, Folder]
    _tree: Tree
    _folder_columns: list[tuple[Folder, array[int]]]
    _reads: dict[str, Callable[[], int]]

    def __init__(self, capacity: int) -> None:
        """Args: capacity: The largest number of rows."""
        super().__init__(capacity)
        self._waited_in_vain = False
        self._joins_in_vain = 0

    def _begin_to_count_time(self) -> None:
        self._began = time.perf_counter()
        self._worked = time.process_time(), time.thread_time()
        self._rested = 0.0

    def _read_one(self, resource: str) -> int:
        """One counter, now."""
        raise NotImplementedError

    def _read_collected(self, resource: str) -> int:
        """The same, when the collector has done its work."""
        raise NotImplementedError

    def settle(self) -> bool:
        """Wait while a scarce counter stands above the start, and correct the last row. Returns whether any fell."""
        pause, waited, fell = 0.001, 0.0, False
        scarce = [*TREE, *self.folders, *(name for name in self._reads if find_resource(name).ends_by_itself)]
        while not self._waited_in_vain:
            standing = [find_resource(name) for name in scarce if self.above_start(name) > 0]
            may_end = any(one.ends_by_itself for one in standing)
            patience = _SETTLE if fell or may_end else _SETTLE_ALONE
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
        """Read the tree again until it has no more threads than these, or for a moment."""
        self._joins_in_vain += 1
        tree = self._tree.read()
        for _ in range(_LOOKS):
            _fds, running, _processes = tree
            if running <= threads:
                self._joins_in_vain = 0
                break
            time.sleep(_MOMENT)
            self._rested += _MOMENT
            tree = self._tree.read()
        return tree

    def _is_alone(self) -> bool:
        """Whether nothing else runs in this process, or under it, that could close a descriptor."""
        _fds, threads, processes = self._tree.read()
        return threads == 1 and processes == 0

    def rest(self, seconds: float, resource: str) -> int:
        """Let the test rest, and see how far a counter rises meanwhile.

        Where it is one of a shared folder, what came meanwhile is not the test's, and does not count.
        """
        if resource in self.folders:
            self._sleep(seconds)
            return self._read_one(resource) - self.level(resource)
        # Read alike before and after: what was made to look into the suspicion stands in both.
        before = self._read_collected(resource)
        time.sleep(seconds)
        self._rested += seconds
        return self._read_collected(resource) - before

    def set_aside_used(self, resource: str) -> None:
        """Take off all rows of a shared folder what other processes have in use there."""
        for folder, column in self._folder_columns:
            if folder.resource == resource and folder.set_aside_used():
                folder.recount(column, self.n)

    def _sleep(self, seconds: float) -> None:
        """What arrives in a shared folder meanwhile is taken off all rows, with what else has a name of that kind."""
        time.sleep(seconds)
        self._rested += seconds
        worked = time.perf_counter() - self._began - self._rested
        for folder, column in self._folder_columns:
            if folder.rested(self.n + 1, self._rested, worked):
                folder.recount(column, self.n)

    def seconds_per_iteration(self) -> float:
        """What an iteration takes, waiting left out."""
        return (time.perf_counter() - self._began - self._rested) / max(1, self.n)

    def share_of_other_threads(self) -> float:
        """Their part of the CPU time since the start, 0 to 1; threads that have ended count too."""
        all_of_it, own = time.process_time() - self._worked[0], time.thread_time() - self._worked[1]
        return max(0.0, 1 - own / all_of_it) if all_of_it > 0 else 0.0
