"""Wait for what ends by itself, and rest (pause the test) to measure growth without it."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from math import inf
from threading import Condition, get_ident
from types import FrameType
from typing import ClassVar, Final

from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.processes import TREE, TreeCount
from pytest_leakcheck.runner.readings import Instruments, Samples

# `Thread.join` returns before the kernel has released the thread. So a count of threads that has
# risen is read again, up to `_MAX_JOIN_CHECKS` times at intervals of `_JOIN_CHECK_SECONDS`. This
# ends after `_MAX_JOINS_IN_VAIN` successive rows in which the count did not fall back.
_MAX_JOIN_CHECKS: Final = 20
_JOIN_CHECK_SECONDS: Final = 0.00005
_MAX_JOINS_IN_VAIN: Final = 3
# About the most iterations whose handles wait for another thread to release them, so that the
# process does not run out.
_MOST_WAITING: Final = 64
# The series begins after this multiple of that time, because iterations do not take equally long.
_FILLING_SHARE: Final = 1.25
_OF_SESSION: Final[set[int]] = set()


def _find_notified() -> Iterator[int]:
    steps = list(dis.get_instructions(Condition.wait))
    for at, step in enumerate(steps):
        call = next((one for one in steps[at:] if one.opname == "CALL"), None)
        if step.argval == "acquire" and call is not None and call.arg == 0:
            yield call.offset


# Where `Condition.wait` waits until another thread notifies it, however long that takes.
_NOTIFIED: Final = frozenset(_find_notified())


def _needs_another(frame: FrameType) -> bool:
    """Return whether a thread goes on only if another lets it, as a worker without work does."""
    return frame.f_code is Condition.wait.__code__ and frame.f_lasti in _NOTIFIED


def leave_out_threads() -> None:
    """Wait for none of the threads that run now: no test has handed a handle to them."""
    _OF_SESSION.update(sys._current_frames())


class Settling:
    """Waits and rests between the iterations of one process.

    Attributes:
        seconds: Maximum seconds to wait for threads, processes and tasks that end by themselves a
            little later: executors and resolvers take up to 2 s. The wait ends when no counter is
            above its start level.
        seconds_alone: Maximum if only descriptors or folder entries are above their start level,
            which are rarely released later. A process with one thread and no children never waits
            for descriptors: nothing could release them.
        seconds_held: Maximum before a suspicion becomes red, if threads of the start still run: a
            server or a reaper may release later what an iteration has handed to it. One that waits
            without a limit to be notified does not.
        deadline: The time from which on nothing is waited for that long, by ``clock.monotonic``.
        waited_long: Seconds of the last wait, if it was for such a thread, and that released
            something; else 0.
        joins_in_vain: Successive rows in which `await_joined` waited, but the count of threads did
            not fall back.
    """

    seconds: ClassVar[float] = 2.0
    seconds_alone: ClassVar[float] = 0.25
    seconds_held: ClassVar[float] = 6.0

    def __init__(self, samples: Samples, instruments: Instruments) -> None:
        """Take what the sampler has opened; waits and rests may correct `samples`."""
        self._samples, self._instruments = samples, instruments
        self._waited_in_vain = self._suspected_in_vain = False
        self.deadline = inf
        self.waited_long = self._released_after = self._full_at = self._paced_at = 0.0
        self._drained: Mapping[str, int] = {}
        self._uncorrected: Mapping[str, int] = {}
        self.joins_in_vain = 0

    def start_clocks(self) -> None:
        # What an earlier series was corrected by is no part of this one.
        self.accept()
        self._began = clock.monotonic()
        self._worked = clock.process_time(), clock.thread_time()
        self._rested = 0.0
        # Those that run Python code: the idle workers of a library in C hold no handle.
        self._threads = frozenset(sys._current_frames()) - _OF_SESSION

    def settle(self, *, suspected: bool = False) -> bool:
        """Wait while more handles exist than at the start; return whether any counter fell.

        The last row is corrected. Handles are descriptors, threads, child processes, asyncio tasks
        and entries of shared folders. With `suspected`, threads of the start get `seconds_held`:
        once in a measurement, if that is in vain.
        """
        self._uncorrected = self._levels() if suspected else {}
        pause, waited, fell, began = 0.001, 0.0, False, clock.monotonic()
        samples, instruments, scarce = self._samples, self._instruments, self._scarce()
        usual = self.seconds if self.may_end() else self.seconds_alone
        while not (self._suspected_in_vain if suspected else self._waited_in_vain):
            standing = [find_resource(name) for name in scarce if self.standing(name) > 0]
            may_end = any(one.ends_by_itself for one in standing)
            patience = self.seconds if fell or may_end else self.seconds_alone
            if (
                suspected
                and waited >= patience
                and self._others_remain()
                and clock.monotonic() < self.deadline
            ):
                patience = max(patience, self.seconds_held)
            own = not may_end and all(one.of_tree for one in standing)
            if not standing or waited >= patience or (own and self._is_alone()):
                break
            self._pause(pause)
            waited, pause = waited + pause, min(2 * pause, 0.1)
            tree = instruments.tree.read()
            for name in scarce:
                value = getattr(tree, name) if name in TREE else instruments.read_one(name, samples)
                if value < samples.columns[name][samples.n]:
                    samples.correct_last(name, value, "ended")
                    fell = True
        self._waited_in_vain |= not fell and waited > 0
        self._suspected_in_vain |= suspected and not fell and waited > 0
        waited = clock.monotonic() - began
        is_long = self.is_paced or (waited > usual and self._others_remain())
        self.waited_long = waited if suspected and fell and is_long else 0.0
        return fell

    def delay_start(self) -> None:
        """Delay the start level until a thread that releases handles late keeps up."""
        # Until then a rest follows each iteration, so that few handles wait at once.
        self._released_after = self.waited_long
        self._paced_at = clock.monotonic()
        self._full_at = self._paced_at + _FILLING_SHARE * self.waited_long
        self._drained = self._levels()

    @property
    def is_paced(self) -> bool:
        return self._released_after > 0

    @property
    def is_filling(self) -> bool:
        return self._full_at > 0

    def has_filled(self) -> bool:
        """Return whether the time is over that `delay_start` has begun."""
        if clock.monotonic() >= self._full_at:
            self._full_at = 0.0
        return not self.is_filling

    def pace(self) -> None:
        if self.is_paced:
            self._pause(
                max(0.0, self._paced_at + self._released_after / _MOST_WAITING - clock.monotonic())
            )
            self._paced_at = clock.monotonic()

    def _others_remain(self) -> bool:
        """Return whether another thread that ran at the start may still go on by itself."""
        others = self._threads - {get_ident()}
        return any(
            number in others and not _needs_another(frame)
            for number, frame in sys._current_frames().items()
        )

    def may_end(self) -> bool:
        """Return whether more threads, child processes or tasks than at the start may end."""
        return any(
            self._samples.above_start(name) > 0
            for name in (*TREE, *self._late())
            if find_resource(name).ends_by_itself
        )

    def standing(self, resource: str) -> int:
        """Return how many handles exceed the start level, or that at the last `delay_start`."""
        level, drained = self._samples.level(resource), self._drained.get(resource)
        return self._samples.above_start(resource) if drained is None else level - drained

    def _levels(self) -> dict[str, int]:
        return {name: self._samples.level(name) for name in self._scarce()}

    def accept(self) -> None:
        """Keep the last row's correction from waiting on a suspicion; `put_back` would undo it."""
        self._uncorrected = {}

    def put_back(self) -> None:
        """Undo the correction: a last row that waiting has lowered would hide the growth."""
        for name, level in self._uncorrected.items():
            self._samples.correct_last(name, level, "put_back")
        self._uncorrected = {}

    def _scarce(self) -> list[str]:
        return [*TREE, *self._instruments.folders, *self._late()]

    def _late(self) -> list[str]:
        return [name for name in self._instruments.reads if find_resource(name).ends_by_itself]

    @property
    def awaits_joined(self) -> bool:
        """Whether to read the process tree again if the count of threads has risen."""
        return self.joins_in_vain < _MAX_JOINS_IN_VAIN

    def await_joined(self, threads: int) -> TreeCount:
        """Read the process tree for about a millisecond, or until it has at most `threads`."""
        self.joins_in_vain += 1
        tree = self._instruments.tree.read()
        for _ in range(_MAX_JOIN_CHECKS):
            if tree.thread <= threads:
                break
            clock.sleep(_JOIN_CHECK_SECONDS)
            self._rested += _JOIN_CHECK_SECONDS
            tree = self._instruments.tree.read()
        if tree.thread <= threads:
            self.joins_in_vain = 0
        return tree

    def _is_alone(self) -> bool:
        """Return whether no other thread or child process exists that could close a descriptor."""
        tree = self._instruments.tree.read()
        return tree.thread == 1 and tree.process == 0

    def rest(self, seconds: float, resource: str) -> int:
        """Return how far a counter rises in a rest; entries of unknown origin do not count."""
        folder = self._instruments.folders.get(resource)
        if folder is not None:
            known = folder.known
            self._pause(seconds)
            self._instruments.read_one(resource, self._samples)
            return folder.known - known
        # Read the counter in the same way before and after the rest. Objects that the harness has
        # created to examine the growth are then part of both readings.
        before = self._instruments.read_collected(resource, self._samples)
        self._pause(seconds)
        return self._instruments.read_collected(resource, self._samples) - before

    def _pause(self, seconds: float) -> None:
        clock.sleep(seconds)
        self._rested += seconds

    def correct_folder(self, resource: str, *, set_aside: bool = False) -> bool:
        """Take other programs' entries off all rows; return whether any had an unknown origin."""
        folder = self._instruments.folders.get(resource)
        if folder is None or not folder.unknown:
            return False
        for rows in folder.leave_out(self._samples.n, set_aside=set_aside):
            self._samples.correct(resource, rows, -1, "foreign")
        return True

    def seconds_per_iteration(self) -> float:
        """Return the mean time of an iteration, without waits and rests."""
        return (clock.monotonic() - self._began - self._rested) / max(1, self._samples.n)

    def share_of_other_threads(self) -> float:
        """Return other threads' share of the CPU time since the start, 0 to 1, with ended ones."""
        total, own = clock.process_time() - self._worked[0], clock.thread_time() - self._worked[1]
        return max(0.0, 1 - own / total) if total > 0 else 0.0
