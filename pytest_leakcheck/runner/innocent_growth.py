"""Look for an innocent cause of growth before it is called a leak.

The causes are looked for only if the numbers show growth, so a clean test pays only for recording
bounded caches at the start. Each has a case in ``tests/cases``, whose verdict changes without it
(``ci/ablation.py``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, inf
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

from pytest_leakcheck.attribution.handles import Identities, new_handles, take_identities
from pytest_leakcheck.attribution.heap.cache_entries import CreatedObjects, retained
from pytest_leakcheck.attribution.timers import find_timers
from pytest_leakcheck.judge.growth import is_steady
from pytest_leakcheck.judge.judge_series import NO_HINT, Hint
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.model.resources import GAUGE_PREFIX, HEAP, THREADS, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.native_heap import thread_cache_bytes
from pytest_leakcheck.probes.processes import thread_ids
from pytest_leakcheck.probes.reference_counts import Account
from pytest_leakcheck.runner.bounded_caches import (
    BoundedOwners,
    CacheFill,
    EmptiedCaches,
    tracers_of_coverage,
)
from pytest_leakcheck.runner.sampler import Sampler

# A restart discards all readings and begins a new series. The most restarts because a cache has
# become full, and because resources ended late or garbage was frozen.
_MAX_FULL_RESTARTS: Final = 8
_MAX_LATE_RESTARTS: Final = 2
# A cache that holds less than this share of the growth is no explanation. For example, a test may
# leak executors with one thread each: every executor could take more threads, but holds only one of
# those that leaked.
_MIN_EXPLAINED_SHARE: Final = 0.1
# Share of the growth that the entries of a cache must hold for the growth to be harmless. Below 1,
# because the size of the entries is an estimate.
_MIN_ACCOUNTED_SHARE: Final = 0.8
# During a rest the test does not run, which shows whether a counter rises without the test. In
# seconds: the shortest and the longest rest, and the total after which a measurement takes no
# further rest.
_MIN_REST_SECONDS: Final = 0.02
_MAX_REST_SECONDS: Final = 1.0
_MAX_TOTAL_REST_SECONDS: Final = 4.0
# Within these limits, a rest lasts as long as this many units took to arrive while the test ran,
# and at least as long as this many iterations. That is enough to distinguish a steady source from a
# single late arrival.
_ARRIVALS_PER_REST: Final = 10.0
# The most that a tracer of coverage.py 7 retains, by what the resource is made of: 620 to 670 bytes
# were measured.
_RETAINED_PER_TRACER: Final = {"memory": 1024, "objects": 8, "blocks": 16}
# If other threads used less than this share of the CPU time, malloc's caches for these threads do
# not matter.
_MIN_OTHER_THREADS_SHARE: Final = 0.02
# Growth above what malloc's caches for so many threads hold is not explained by them.
_MAX_THREAD_CACHES: Final = 16
# Seconds. An iteration in production, which also waits for its turn, is assumed to take at least
# this long.
_LEAST_SECONDS_IN_PRODUCTION: Final = 0.1
# What a `TemporaryDirectory` calls as it ends, and all calls of this kind that are due.
_REMOVE: Final = TemporaryDirectory._cleanup  # type: ignore[attr-defined]
_FINALIZERS: Final = weakref.finalize._registry  # type: ignore[attr-defined]

# References that must come or go between two counts of what holds them.
_MIN_COMPARED: Final = 6
_NOT_COMPARED: Final = "in so few iterations, it was not counted what holds them"

Look: TypeAlias = Callable[[Sampler, Verdict, int], Hint | None]


class InnocentGrowth:
    """The innocent causes of growth in one measurement. Create it before the first iteration.

    Attributes:
        restarts: How often the series has begun again.
        owners: Caches that may grow as well, but do not hold the leak; from `watch` on.
    """

    def __init__(self, left: Mapping[str, str]) -> None:
        """Prepare for a measurement.

        `left` is the earlier test that left a thread running, by the thread's number.
        """
        self._left = left
        self.restarts = self._late = 0
        self._rested = 0.0
        self._had_garbage = False
        self.account: Account | None = None

    def watch(self) -> None:
        """Record how full caches are, and the number of tracers, before instruments are opened."""
        self.owners = BoundedOwners()
        self._tracers = tracers_of_coverage()

    def start(self, identities: Identities) -> None:
        """Record the fill of bounded owners, and the threads and handles, as the series begins."""
        self._identities = identities
        # Its change counts from the start of an earlier series.
        self.account = None
        self._threads = thread_ids()
        self._began = clock.monotonic()
        self._emptied = EmptiedCaches()
        self.owners.restart()

    @contextmanager
    def noting_caches(self) -> Iterator[None]:
        """Note the caches that came in the search for a cause; the body unfreezes all objects."""
        new = CreatedObjects().new
        yield
        self.owners.find_earlier(new)

    def explain_references(self, sampler: Sampler, slope: float) -> Hint:
        """Return how many references objects of Python hold, or have given up."""
        references, before = sampler.instruments.references, self.account
        if references is None:
            return NO_HINT
        at = references.find_changed()
        if before is None or before.obj is not references.object(at):
            self.account = sampler.account(references, at)
            return Hint(_NOT_COMPARED)
        if abs(references.change(at) - before.change) < _MIN_COMPARED:
            return Hint(_NOT_COMPARED)
        self.account = sampler.account(references, at)
        if not self.account.explains_since(before):
            return NO_HINT
        # Other counters judge what holds them.
        return Hint(rate=slope, replaced=abs(self.account.change))

    def looks(self) -> Iterator[Look]:
        """Yield the looks for a cause, cheapest first.

        Each takes the suspicion and the most iterations of the test.
        """
        # Caches come before anything is frozen again, because frozen objects are not listed.
        yield self._look_at_caches
        yield self._look_at_emptied_caches
        yield self._look_at_timers
        yield self._look_at_tracers
        yield self._look_at_thread_caches
        yield self._look_at_temporary_directories
        yield self._look_for_late_ends
        yield self._look_for_frozen_garbage
        yield self._look_in_background

    def _look_at_caches(self, sampler: Sampler, suspicion: Verdict, most: int) -> Hint | None:
        """A cache with a readable bound (a bounded owner) is still filling."""
        found = self._explain_by_caches(sampler, suspicion, most)
        self.restarts += found is not None and found.ended
        return found

    def _explain_by_caches(
        self,
        sampler: Sampler,
        suspicion: Verdict,
        most: int,
        created: CreatedObjects | None = None,
    ) -> Hint | None:
        name = suspicion.resource
        filling = self.owners.filling(name, self._new_handles(sampler, name), created)
        if filling is None or not (rate := _compute_explained_rate(filling, sampler, name)):
            return None
        if not filling.is_bounded:
            # With much memory, the program may not live to see the end.
            return None if sampler.samples.retains_much() else Hint(filling.text, rate)
        if (at_most := _compute_full_level(filling, sampler, name, most)) is not None:
            each, full = (
                _format_about(value, name)
                for value in (filling.retained / filling.entries, at_most)
            )
            return Hint(
                f"cache filling: {filling.text}, {each} each, at most {full}", rate, at_most
            )
        # A level that is exceeded does not fall when the cache is full.
        of_level = suspicion.outcome == "over_budget" and suspicion.kind != "predicted"
        ended = filling.full and not of_level and self.restarts - self._late < _MAX_FULL_RESTARTS
        state = "has just become full" if filling.full else "still filling"
        return Hint(f"bounded cache {state}: {filling.text}", rate, ended=ended)

    def _new_handles(self, sampler: Sampler, name: str) -> frozenset[Hashable]:
        if name in sampler.instruments.folders:
            return frozenset(sampler.instruments.folders[name].names())
        if find_resource(name).made_of != "handles":
            return frozenset()
        return new_handles(self._identities, take_identities(), name)

    def _look_at_emptied_caches(
        self, sampler: Sampler, suspicion: Verdict, _most: int
    ) -> Hint | None:
        """A cache that can be emptied is still filling."""
        if not self._emptied.explain(sampler, suspicion.resource):
            return None
        return Hint(
            "bounded cache still filling: one of the standard library that empties on request (re, linecache)"
        )

    def _look_at_timers(self, sampler: Sampler, suspicion: Verdict, _most: int) -> Hint | None:
        """Timers that are due hold it, and none can have ended yet."""
        name = suspicion.resource
        timers = find_timers(self._identities.threads)
        seconds = max((one.seconds for one in timers), default=0.0)
        if seconds <= clock.monotonic() - self._began:
            return None
        new = self._new_handles(sampler, name)
        if name == THREADS:
            held: float = sum(one.thread in new for one in timers)
        elif suspicion.traits.made_of in ("memory", "blocks") and any(one.thread for one in timers):
            # A thread may hold any amount.
            held = inf
        else:
            held = retained(name, [part for one in timers for part in one.held], new)
        rate = _compute_explained_rate(CacheFill("", held, len(timers), full=False), sampler, name)
        if not rate:
            return None
        each = sampler.settling.seconds_per_iteration()
        shown = f"{seconds:.2g}" if seconds < 10 else f"{seconds:,.0f}"
        longer = f"--leakcheck-iterations={ceil(4 * seconds / each)} --leakcheck-max-time={ceil(8 * seconds)}"
        return Hint(
            f"held by timers that end after {shown} s",
            rate,
            advice=f"cancel them in the test; or see whether the growth ends: {longer}",
            within=seconds / max(each, _LEAST_SECONDS_IN_PRODUCTION),
        )

    def _look_at_tracers(self, sampler: Sampler, suspicion: Verdict, _most: int) -> Hint | None:
        """coverage.py keeps a tracer for each thread."""
        name, gained = suspicion.resource, tracers_of_coverage() - self._tracers
        if not gained or not suspicion.traits.counts_python:
            return None
        if gained * _RETAINED_PER_TRACER[suspicion.traits.made_of] < sampler.samples.above_start(
            name
        ):
            return None
        return Hint(
            f"coverage.py keeps a tracer for each thread: {gained} since the start; measure without coverage"
        )

    def _look_at_thread_caches(
        self, sampler: Sampler, suspicion: Verdict, _most: int
    ) -> Hint | None:
        """Malloc keeps freed blocks for each thread, which count as in use: growth is uneven."""
        # It keeps hundreds of KB for each. The harness fills the cache of its own thread
        # beforehand, but cannot fill those of others.
        gained = sampler.samples.above_start(suspicion.resource)
        if suspicion.resource != HEAP or gained > _MAX_THREAD_CACHES * thread_cache_bytes():
            return None
        share = sampler.settling.share_of_other_threads()
        if share < _MIN_OTHER_THREADS_SHARE or is_steady(
            sampler.samples.series(suspicion.resource).readings
        ):
            return None
        return Hint(
            f"other threads did {share:.0%} of the work, and malloc keeps freed blocks for each: uneven growth, "
            f"+{format_amount(gained, 'bytes')} so far; --leakcheck-isolate would decide it"
        )

    def _look_at_temporary_directories(
        self, sampler: Sampler, suspicion: Verdict, _most: int
    ) -> Hint | None:
        """A `TemporaryDirectory` will remove most of the files; only a budget makes them a leak."""
        folder = sampler.instruments.folders.get(suspicion.resource)
        if folder is None or suspicion.explicit:
            return None
        new = dict.fromkeys(folder.path_of(name) for name in folder.names())
        earlier = (path for path in _temporary_directories() if path not in new)
        removed = {path: sum(one.startswith(f"{path}/") for one in new) for path in earlier}
        if 2 * sum(removed.values()) <= len(new):
            return None
        found = max(removed, key=removed.__getitem__)
        text = f"files in {found}, which is a TemporaryDirectory that removes them when it ends"
        return Hint(
            text, advice=f"to have them judged, set a budget: {suspicion.resource}_budget()"
        )

    def _look_for_late_ends(self, sampler: Sampler, suspicion: Verdict, _most: int) -> Hint | None:
        """Resources end by themselves a little later."""
        if not self._may_begin_again(suspicion) or not _ended_late(sampler, suspicion.resource):
            return None
        settling = sampler.settling
        if settling.waited_long and settling.is_paced:
            # The series goes on: the fall that was waited for is in it.
            return Hint(
                f"a thread that was there at the start releases it up to {settling.waited_long:.2g} s later"
            )
        # To wait that long in each row would take too much time.
        sampler.patient |= not settling.waited_long
        return self._begin_again(sampler)

    def _look_for_frozen_garbage(
        self, sampler: Sampler, suspicion: Verdict, most: int
    ) -> Hint | None:
        """Most growth is garbage that was alive when frozen, so the collector does not free it."""
        # While nothing is frozen, the caches are found that were not known when the measurement
        # began.
        if not self._may_begin_again(suspicion):
            return None
        created = CreatedObjects()
        new = created.new
        garbage = sampler.thaw(suspicion.resource)
        unknown = self.owners.find_earlier(new)
        explains = 2 * garbage >= sampler.samples.above_start(suspicion.resource) and garbage > 0
        filling = self._explain_by_caches(sampler, suspicion, most, created) if unknown else None
        # They would be memory of the harness, and gone later.
        del created, new
        # Garbage of a few iterations is gone now. If there is more, freeze nothing from here on,
        # although each collection then walks all objects.
        if explains and self._had_garbage:
            sampler.forget_own_work()
        else:
            sampler.refreeze()
        self._had_garbage |= explains
        again = self._begin_again(sampler) if explains or filling is not None else None
        # Without time for that, caches explain what they hold. How full they were is unknown.
        return again if explains or filling is None else replace(filling, at_most=None, ended=True)

    def _may_begin_again(self, suspicion: Verdict) -> bool:
        return (
            suspicion.outcome != "inconclusive"
            and self._late < _MAX_LATE_RESTARTS
            and not _is_of_test(suspicion)
        )

    def _begin_again(self, sampler: Sampler) -> Hint:
        if sampler.settling.waited_long:
            sampler.settling.delay_start()
        self._late += 1
        self.restarts += 1
        return Hint(ended=True)

    def _look_in_background(self, sampler: Sampler, suspicion: Verdict, _most: int) -> Hint | None:
        """The counter also rises while the test rests, at least half as fast."""
        # Only threads that were there when the series began, and children, can be the cause. A pool
        # that the test uses may be among them, but it does nothing while the test rests.
        name, slope = suspicion.resource, suspicion.slope
        can_work = len(thread_ids() & self._threads) > 1 or sampler.children
        if (
            suspicion.outcome == "inconclusive"
            or slope <= 0
            or _is_of_test(suspicion)
            or not can_work
        ):
            return None
        seconds_each = sampler.settling.seconds_per_iteration()
        seconds = min(
            _MAX_REST_SECONDS,
            max(_MIN_REST_SECONDS, _ARRIVALS_PER_REST * seconds_each / min(1.0, slope)),
        )
        seconds = seconds if self._rested < _MAX_TOTAL_REST_SECONDS else 0.0
        self._rested += seconds
        gained = sampler.settling.rest(seconds, name) if seconds else 0
        if gained <= 0 or 2 * gained < slope / seconds_each * seconds:
            return None
        text = f"also grows while the test is paused, +{_format_about(gained, name)} in {seconds:.2g} s"
        if tests := sorted({self._left[thread] for thread in thread_ids() if thread in self._left}):
            text += f", after {' and '.join(tests)} left a thread running"
        return Hint(
            f"{text}: something started before the test causes it",
            advice="stop what other tests start, or run this test alone: --leakcheck-isolate",
        )


def _temporary_directories() -> list[str]:
    """Return the path of each `TemporaryDirectory` that has not ended, by its finalizer."""
    ending = (one.peek() for one in list(_FINALIZERS))
    return [str(found[2][0]) for found in ending if found is not None and found[1] == _REMOVE]


def _is_of_test(suspicion: Verdict) -> bool:
    return suspicion.resource.startswith(GAUGE_PREFIX)


def _ended_late(sampler: Sampler, name: str) -> bool:
    """Wait for what ends by itself, and return whether that undoes at least half of the growth."""
    # Memory is waited for only if threads, child processes or tasks may end. These must then
    # release as much as the second half of the iterations has added: the first ones also fill the
    # caches of allocators.
    samples, settling = sampler.samples, sampler.settling
    if not find_resource(name).scarce:
        added = samples.level(name) - samples.columns[name][samples.n // 2]
        return settling.may_end() and settling.settle() and sampler.came_down(name) >= added > 0
    stood = max(0, samples.above_start(name))
    ended = settling.settle(suspected=True) and 2 * settling.standing(name) <= stood
    if ended:
        settling.accept()
    return ended


def _compute_explained_rate(filling: CacheFill, sampler: Sampler, name: str) -> float:
    """Return the growth per iteration that entries explain; 0 if that is too little to matter."""
    # Objects are counted. The memory of entries is an estimate: at least half of the growth
    # explains all of it (infinity), less explains nothing. An entry that may hold any amount
    # explains up to two rises of the counter.
    retained, gained = filling.retained, sampler.samples.above_start(name)
    if retained == inf and 2 * filling.entries < sampler.samples.rises(name):
        return 0.0
    if find_resource(name).made_of in ("memory", "blocks"):
        return inf if 2 * retained >= gained else 0.0
    return retained / sampler.samples.n if retained >= _MIN_EXPLAINED_SHARE * gained else 0.0


def _compute_full_level(filling: CacheFill, sampler: Sampler, name: str, most: int) -> float | None:
    """Return the level above the start of full owners; None if it is unknown or inconclusive."""
    # It is inconclusive if the remaining iterations can fill the owners (waiting shows more), if
    # their entries do not account for the growth (the rest is then judged), and for scarce
    # resources, which the process may run out of before.
    if find_resource(name).scarce:
        return None
    n, gained = sampler.samples.n, sampler.samples.above_start(name)
    if filling.full or filling.left * n <= filling.entries * (most - n) or filling.at_most == inf:
        return None
    if filling.retained + n * find_resource(name).tolerance < _MIN_ACCOUNTED_SHARE * gained:
        return None
    return gained + max(0.0, filling.at_most - filling.retained)


def _format_about(value: float, name: str) -> str:
    return format_amount(round(value), find_resource(name).unit)
