"""Wait for resources that end by themselves, and rest to measure growth without the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Final

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.processes import TREE
from pytest_leakcheck.runner.instruments import Instruments
from pytest_leakcheck.runner.samples import Samples

# `Thread.join` returns before the kernel has released the thread. So the count of threads is read up to this many times
# more, this many seconds apart, and no longer once that was in vain in `MAX_JOINS_IN_VAIN` rows.
_MAX_JOIN_CHECKS: Final = 20
_JOIN_CHECK_SECONDS: Final = 0.00005
MAX_JOINS_IN_VAIN: Final = 3


class Settling:
    """Waits and rests between the iterations of one process.

    Attributes:
        seconds: Seconds to wait for threads, processes and tasks that end by themselves a little later: executors and
            resolvers take up to 2 s. Only waited while a counter is above its start level.
        seconds_alone: Seconds to wait for descriptors or files alone, which are rarely released later. In a process of
            one thread, without children, nothing could release a descriptor: no wait then.
        folder_columns: The shared folders, each with its column of readings.
        joins_in_vain: In how many rows a thread was still counted after its ``join``, whatever the wait.
    """

    seconds: ClassVar[float] = 2.0
    seconds_alone: ClassVar[float] = 0.25

    def __init__(
        self,
        samples: Samples,
        instruments: Instruments,
        read_one: Callable[[str], int],
        read_collected: Callable[[str], int],
    ) -> None:
        """Use what the sampler has opened.

        Args:
            samples: The readings, of which the last row may be corrected.
            instruments: What reads them.
            read_one: Returns the current reading of one counter.
            read_collected: Returns it after a garbage collection.
        """
        self._samples, self._instruments = samples, instruments
        self._read_one, self._read_collected = read_one, read_collected
        self.folder_columns = [(folder, samples.columns[name]) for name, folder in instruments.folders.items()]
        self._waited_in_vain = False
        self.joins_in_vain = 0

    def start_clocks(self) -> None:
        """Begin to measure the time of the iterations."""
        self._began = time.perf_counter()
        self._worked = time.process_time(), time.thread_time()
        self._rested = 0.0

    def settle(self) -> bool:
        """Wait while a countable (exactly counted) resource is above its start level, and correct the last row.

        Returns:
            Whether any counter fell.
        """
        pause, waited, fell = 0.001, 0.0, False
        samples, tree_now = self._samples, self._instruments.tree.read
        late = (name for name in self._instruments.reads if find_resource(name).ends_by_itself)
        scarce = [*TREE, *self._instruments.folders, *late]
        while not self._waited_in_vain:
            standing = [find_resource(name) for name in scarce if samples.above_start(name) > 0]
            may_end = any(one.ends_by_itself for one in standing)
            patience = self.seconds if fell or may_end else self.seconds_alone
            own = not may_end and all(one.of_tree for one in standing)
            if not standing or waited >= patience or (own and self._is_alone()):
                break
            self._sleep(pause)
            waited, pause = waited + pause, min(2 * pause, 0.1)
            tree = tree_now()
            for name in scarce:
                value = tree[TREE.index(name)] if name in TREE else self._read_one(name)
                if value < samples.columns[name][samples.n]:
                    samples.columns[name][samples.n], fell = value, True
        self._waited_in_vain |= not fell and waited > 0
        return fell

    def await_joined(self, threads: int) -> tuple[int, int, int]:
        """Read the tree until it has at most this many threads, or about a millisecond has passed."""
        self.joins_in_vain += 1
        tree = self._instruments.tree.read()
        for _ in range(_MAX_JOIN_CHECKS):
            _fds, running, _processes = tree
            if running <= threads:
                self.joins_in_vain = 0
                break
            time.sleep(_JOIN_CHECK_SECONDS)
            self._rested += _JOIN_CHECK_SECONDS
            tree = self._instruments.tree.read()
        return tree

    def _is_alone(self) -> bool:
        """Return whether no other thread or child process exists that could close a descriptor."""
        _fds, threads, processes = self._instruments.tree.read()
        return threads == 1 and processes == 0

    def rest(self, seconds: float, resource: str) -> int:
        """Rest without running the test, and return how far a counter rises in that time.

        Entries that arrive in a shared folder during the rest are not the test's and do not count.
        """
        if resource in self._instruments.folders:
            self._sleep(seconds)
            return self._read_one(resource) - self._samples.level(resource)
        # Read in the same way before and after: objects made to examine the suspicion are part of both readings.
        before = self._read_collected(resource)
        time.sleep(seconds)
        self._rested += seconds
        return self._read_collected(resource) - before

    def set_aside_used(self, resource: str) -> None:
        """Remove entries that other processes have in use from all rows of a shared folder."""
        for folder, column in self.folder_columns:
            if folder.resource == resource and folder.set_aside_used():
                folder.recount(column, self._samples.n)

    def _sleep(self, seconds: float) -> None:
        """Sleep; remove entries that arrive in shared folders from all rows, and others with names of the same kind."""
        time.sleep(seconds)
        self._rested += seconds
        worked = time.perf_counter() - self._began - self._rested
        for folder, column in self.folder_columns:
            if folder.rested(self._samples.n + 1, self._rested, worked):
                folder.recount(column, self._samples.n)

    def seconds_per_iteration(self) -> float:
        """Return the mean time of an iteration, without waits and rests."""
        return (time.perf_counter() - self._began - self._rested) / max(1, self._samples.n)

    def share_of_other_threads(self) -> float:
        """Return the share of other threads in the CPU time since the start, 0 to 1; ended threads count too."""
        total, own = time.process_time() - self._worked[0], time.thread_time() - self._worked[1]
        return max(0.0, 1 - own / total) if total > 0 else 0.0
