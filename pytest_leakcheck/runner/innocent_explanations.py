"""Before growth is called a leak: the innocent explanations, each tried on the running process.

Asked only when the numbers have made up their mind, so a test that is clean pays nothing:

* a bounded owner that is filling up, or a cache that empties on request;
* things that end by themselves a little later;
* garbage that was alive when it was frozen;
* something else at work: then the counter also rises while the test rests;
* what is kept for each thread, by coverage.py or by malloc;
* what a thread that was there before holds at one moment and not at another.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final

from pytest_leakcheck.attribution.live_handles import Identities, new_handles, take_identities
from pytest_leakcheck.judge.growth import is_steady
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes.processes import thread_ids
from pytest_leakcheck.runner.bounded_caches import BoundedOwners, Filling, RefillingCaches, tracers_of_coverage
from pytest_leakcheck.runner.sampler import Sampler

_RESTARTS: Final = 2
# Caches after which the series begins again because they have become full.
_FILLED: Final = 8
# Share of the growth below which a cache has nothing to do with it: each executor that is kept has one thread of its own.
_LEAST_EXPLAINED: Final = 0.1
# Seconds of one rest, and of all in one measurement.
_SHORTEST: Final = 0.02
_LONGEST: Final = 1.0
_ALL: Final = 4.0
# A rest is so long that it would see so many arrivals if they came as fast as while the test ran: enough to tell all of
# them from the one that comes late.
_ARRIVALS: Final = 10.0
# Iterations after which what could not be told at once is asked again.
_FOLDER_LEAST, _FOLDER_MOST = 3, 8
_AS_BEFORE: Final = 0.75
_GARBAGE: Final = 12
# Where other threads did less of the work, in seconds of CPU, their caches do not matter; those of 16 hold no more.
_AT_WORK: Final = 0.05
_OF_THREADS: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Explanation:
    """An innocent explanation of growth.

    Attributes:
        text: For the report; empty where there is none.
        rate: How much of the growth per iteration it accounts for, in the unit of the resource; infinity for all of it.
        full: It is a cache that has just reached its bound, so that a series which begins now stands still.
    """

    text: str = ""
    rate: float = inf
    full: bool = False


class Explanations:
    """The explanations for one measurement. Made before the first iteration.

    Attributes:
        restarts: How often the series has begun again.
    """

    def __init__(self, left: Mapping[str, str]) -> None:
        """Args: left: which earlier test left a thread running, by the thread's number."""
        self._threads = thread_ids()
        self._left = left
        self.restarts = self._filled = 0
        self._rested = 0.0
        self._emptied: dict[str, str] = {}
        self._emptied_at = -1
        self._entries = 0
        self._confirming: dict[str, int] = {}
        self._growing: dict[str, tuple[int, int]] = {}
        self._again_in = 0

    def watch(self, *, quiet_heap: bool) -> None:
        """When the instruments are opened: remember how full bounded owners are.

        Args:
            quiet_heap: The allocator keeps no caches of freed blocks.
        """
        self._quiet_heap = quiet_heap
        self._owners = BoundedOwners()
        self._caches = RefillingCaches()
        self._tracers = tracers_of_coverage()
        self._others = len(sys._current_frames()) - 1

    def slack(self, name: str) -> int:
        """By how much a level may be exceeded since Python's other threads, those that ran at the start, are elsewhere now."""
        return self._others * find_resource(name).per_waiting_thread

    def start(self, identities: Identities) -> None:
        """The series begins: which descriptors, threads and the like there are, and how full owners are."""
        self._identities = identities
        self._owners.restart()

    def explain(self, sampler: Sampler, name: str) -> Explanation:
        """What else explains the growth of a resource than a leak."""
        filling = self._owners.filling(name, self._new_handles(sampler, name))
        if filling is not None and (rate := self._explained_rate(filling, sampler, name)):
            state = "has just become full" if filling.full else "still filling"
            return Explanation(f"bounded cache {state}: {filling.text}", rate, filling.full)
        return Explanation(self.explain_otherwise(sampler, name))

    def explain_otherwise(self, sampler: Sampler, name: str) -> str:
        """What explains the growth where no cache whose bound can be read explains all of it; empty if nothing does."""
        if cached := self._cached(sampler, name):
            return f"bounded cache still filling: {cached}"
        return self._traced(sampler, name) or self._kept_for_threads(sampler, name)

    def bounded_owners(self) -> frozenset[int]:
        """Identities of all caches with a bound: one that fills beside a leak is not what holds it."""
        return self._owners.identities()

    def _explained_rate(self, filling: Filling, sampler: Sampler, name: str) -> float:
        """How much of the growth per iteration the entries account for; 0 where that is too little to matter.

        Handles are counted, so what goes beyond them is a leak. What an entry takes of memory is an estimate: it explains
        all of the growth from half of it on, and below that nothing. Where an entry may hold any amount, so many of them
        explain as many rises.
        """
        if filling.retained == inf and 2 * filling.entries < sampler.samples.rises(name):
            return 0.0
        rate = filling.retained / sampler.samples.n
        if find_resource(name).made_of in ("memory", "blocks"):
            return inf if 2 * filling.retained >= sampler.samples.above_start(name) else 0.0
        return rate if filling.retained >= _LEAST_EXPLAINED * sampler.samples.above_start(name) else 0.0

    def _new_handles(self, sampler: Sampler, name: str) -> frozenset[Hashable]:
        """The descriptors, threads, files and the like that are there now and were not at the start."""
        if name in sampler.instruments.folders:
            return frozenset(sampler.instruments.folders[name].names())
        if find_resource(name).made_of != "handles":
            return frozenset()
        return new_handles(self._identities, take_identities(), name)

    def restart_when_full(self) -> bool:
        """Whether the series may begin again after a cache that has just become full; then it explains nothing more."""
        if self._filled >= _FILLED:
            return False
        self._filled += 1
        self._forget()
        return True

    def begins_anew(self, sampler: Sampler, name: str) -> bool:
        """Whether it was an artefact of measuring: what ended late, or was frozen. Then the series must begin anew."""
        if self.restarts - self._filled >= _RESTARTS or find_resource(name).of_test:
            return False
        stood = sampler.samples.above_start(name)
        settled = (
            find_resource(name).scarce and sampler.settling.settle() and 2 * sampler.samples.above_start(name) <= stood
        )
        if not settled and not self._was_frozen(sampler, name):
            return False
        sampler.patient = sampler.patient or settled
        self._forget()
        return True

    def _forget(self) -> None:
        self.restarts += 1
        self._confirming.clear()
        self._growing.clear()

    def _was_frozen(self, sampler: Sampler, name: str) -> bool:
        """Whether most of the growth is garbage that was alive when it was frozen. Then the program stays unfrozen.

        One iteration may leave such garbage once, and more of it than a small leak comes to. So memory is asked twice:
        what has become garbage since the first time must be most of what it has grown by since.
        """
        since = self._confirming.get(name, sampler.samples.level(name) - sampler.samples.above_start(name))
        garbage = sampler.thaw(name)
        most = 2 * garbage >= sampler.samples.level(name) - since and garbage > 0
        if most and (find_resource(name).scarce or name in self._confirming):
            sampler.stay_thawed()
            return True
        sampler.refreeze()
        if most:
            self._confirming[name] = sampler.samples.level(name)
            self._again_in = _GARBAGE
        return False

    def set_others_aside(self, sampler: Sampler, name: str) -> None:
        """Where a shared folder has gained entries: take off what others have in use, rest, and take off what they make."""
        if name not in sampler.instruments.folders or sampler.samples.above_start(name) <= 0:
            return
        sampler.settling.set_aside_used(name)
        gained = sampler.samples.above_start(name)
        # What was made here needs no rest to be told apart.
        if gained > sampler.instruments.folders[name].own:
            seconds = self._seconds(_ARRIVALS * sampler.settling.seconds_per_iteration() * sampler.samples.n / gained)
            if seconds:
                sampler.settling.rest(seconds, name)

    def confirm_in(self, sampler: Sampler, name: str, slope: float) -> int:
        """How many iterations more it takes to be sure that the growth is the test's; 0 when it is.

        That of a shared folder must go on after a rest: another process that was busy and is done looks the same up to
        there. That of memory must go on where much of it turned out to be garbage.
        """
        again, self._again_in = self._again_in, 0
        if again or name not in sampler.instruments.folders or slope <= 0:
            return again
        level, (then, at) = sampler.samples.level(name), self._growing.get(name, (0, sampler.samples.n))
        if sampler.samples.n > at and level - then >= _AS_BEFORE * slope * (sampler.samples.n - at):
            return 0
        self._growing[name] = level, sampler.samples.n
        return min(_FOLDER_MOST, max(_FOLDER_LEAST, round(_FOLDER_LEAST / slope)))

    def background(self, sampler: Sampler, name: str, slope: float) -> str:
        """What the resource gained while the test rested, as a text; empty where it gained less than half its pace.

        Threads that this test has started work for it, so nothing is said then.
        """
        resource = find_resource(name)
        if resource.of_test or name in sampler.instruments.folders or slope <= 0 or not self._elsewhere(sampler):
            return ""
        pace = slope / sampler.settling.seconds_per_iteration()
        seconds = self._seconds(_ARRIVALS * sampler.settling.seconds_per_iteration() / min(1.0, slope))
        if not seconds:
            return ""
        gained = sampler.settling.rest(seconds, name)
        if 2 * gained < pace * seconds or gained <= 0:
            return ""
        pace_of_it = f"+{format_amount(gained, resource.unit)} in {seconds:.2g} s"
        tests = sorted({self._left[thread] for thread in thread_ids() if thread in self._left})
        return f"{pace_of_it}, where {' and '.join(tests)} left a thread running" if tests else pace_of_it

    def _seconds(self, wanted: float) -> float:
        """A rest within bounds; 0 once all are used up."""
        if self._rested >= _ALL:
            return 0.0
        seconds = min(_LONGEST, max(_SHORTEST, wanted))
        self._rested += seconds
        return seconds

    def _elsewhere(self, sampler: Sampler) -> bool:
        """Whether anything was at work before the test that could be at work now."""
        now = thread_ids()
        return (len(now) > 1 or sampler.children > 0) and now <= self._threads

    def _kept_for_threads(self, sampler: Sampler, name: str) -> str:
        """Whether the allocator's caches of other threads may account for it: uneven growth of no more than they hold.

        glibc keeps up to 230 KB of freed blocks for each thread, in use by its count. Those of this thread are filled
        beforehand, those of others cannot be.
        """
        if not find_resource(name).thread_caches or self._quiet_heap or sampler.samples.above_start(name) > _OF_THREADS:
            return ""
        share, readings = sampler.settling.share_of_other_threads(), sampler.samples.series(name).readings
        if share < _AT_WORK or is_steady(readings):
            return ""
        return (
            f"other threads did {share:.0%} of the work, and malloc keeps freed blocks for each: uneven growth, "
            f"+{format_amount(sampler.samples.above_start(name), 'bytes')} so far; --leakcheck-isolate would tell"
        )

    def _traced(self, sampler: Sampler, name: str) -> str:
        """Whether coverage.py's tracers account for the growth: no bound of theirs, but none of the test's doing."""
        gained = tracers_of_coverage() - self._tracers
        if gained * find_resource(name).per_tracer < sampler.samples.above_start(name) or not gained:
            return ""
        return f"coverage.py keeps a tracer for each thread: {gained} since the start; measure without it"

    def _cached(self, sampler: Sampler, name: str) -> str:
        """Whether most of what stands above the start is in caches that empty on request."""
        if find_resource(name).scarce:
            return ""
        if name not in self._emptied:
            if self._emptied_at != sampler.samples.n:
                self._emptied_at = sampler.samples.n
                self._entries = self._caches.empty()
            # A few entries do not explain many rises: what fell then is something else, such as an arena of the
            # interpreter's allocator that became free, 1 MiB of mapped memory at once.
            enough = 2 * self._entries >= sampler.samples.rises(name)
            if enough and 2 * sampler.came_down(name) >= sampler.samples.above_start(name) > 0:
                # Remembered: what was emptied counts as the harness's doing, so the series goes on as if it were there.
                self._emptied[name] = "a cache of the standard library that empties on request (re, linecache)"
        return self._emptied.get(name, "")
