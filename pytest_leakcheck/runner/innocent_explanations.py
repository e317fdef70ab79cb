"""Check the innocent explanations of growth before it is called a leak.

They are checked only if the numbers show growth, so a clean test pays only for recording bounded caches at the start:

* a cache that is still filling: one with a readable bound (a "bounded owner"), or one that can be emptied;
* for resident memory: a large buffer that was allocated at once and is filled piece by piece;
* resources that end by themselves a little later;
* objects that were frozen while in use and have become garbage since, which the collector does not free;
* something other than the test: then the counter also rises while the test rests;
* what coverage.py or malloc retains for each thread;
* a thread that already ran at the start, and may now wait elsewhere and hold more objects than it did then.
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
from pytest_leakcheck.runner.filled_buffers import FilledBuffers
from pytest_leakcheck.runner.sampler import Sampler

# A restart discards all readings and begins a new series. The maximum number of restarts because resources ended late
# or the growth was frozen garbage.
_MAX_RESTARTS: Final = 2
# The maximum number of restarts because a cache has become full.
_MAX_FULL_RESTARTS: Final = 8
# A cache that holds less than this share of the growth is no explanation. For example, a test may leak executors with
# one thread each: every executor could take more threads, but holds only one of those that leaked.
_MIN_EXPLAINED_SHARE: Final = 0.1
# Share of the growth that the entries of a cache must hold for the growth to be harmless. Below 1, because the size of
# the entries is an estimate.
_MIN_ACCOUNTED_SHARE: Final = 0.8
# During a rest the test does not run, which shows whether a counter rises without the test. In seconds: the shortest
# and the longest rest, and the total after which a measurement takes no further rest.
_MIN_REST_SECONDS: Final = 0.02
_MAX_REST_SECONDS: Final = 1.0
_MAX_TOTAL_REST_SECONDS: Final = 4.0
# Within these limits, a rest lasts as long as this many units took to arrive while the test ran; in `background`, also
# at least as long as this many iterations. That is enough to distinguish a steady source from a single late arrival.
_ARRIVALS_PER_REST: Final = 10.0
# The least and the most iterations after which the growth of a shared folder is measured again, and the share of the
# overall growth rate that the growth in these iterations must reach as confirmation.
_MIN_CONFIRMING_ITERATIONS, _MAX_CONFIRMING_ITERATIONS = 3, 8
_MIN_CONFIRMED_SHARE: Final = 0.75
# Two explanations of memory growth need a second check: garbage that was frozen, and buffers that are filled. This is
# the number of iterations between the checks.
_SECOND_LOOK_ITERATIONS: Final = 12
# If other threads used less than this share of the CPU time, malloc's caches for these threads do not matter.
_MIN_OTHER_THREADS_SHARE: Final = 0.05
# Growth in bytes above which malloc's caches for threads are no explanation: the caches of 16 threads hold no more.
_MAX_THREAD_CACHES_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Explanation:
    """An innocent explanation of growth.

    Attributes:
        text: The explanation for the report; empty if there is none.
        rate: The growth per iteration that it accounts for, in the unit of the resource; infinity for all of it.
        full: A cache has just reached its bound, so a series that begins now is flat.
        at_most: The level above the start at which the growth will end, in the unit of the resource. None if unknown,
            or if the remaining iterations can fill the cache.
        isolate: A run of the test alone, in a fresh process, would show whether the explanation is true.
    """

    text: str = ""
    rate: float = inf
    full: bool = False
    at_most: float | None = None
    isolate: bool = False


class Explanations:
    """The explanations for one measurement. Create it before the first iteration."""

    def __init__(self, left: Mapping[str, str]) -> None:
        """Prepare for a measurement; `left` is the earlier test that left a thread running, by the thread's number."""
        self._left = left
        self.restarts = self._filled = 0
        self._rested = 0.0
        self._confirming: dict[str, int] = {}
        self._growing: dict[str, tuple[int, int]] = {}
        self._again_in = 0
        self._buffers = FilledBuffers()

    def watch(self, *, quiet_heap: bool) -> None:
        """Record how full bounded owners are, and the numbers of threads and tracers, before instruments are opened."""
        self._quiet_heap = quiet_heap
        self._owners = BoundedOwners()
        self._caches = _EmptiedCaches()
        self._tracers = tracers_of_coverage()
        self._others = len(sys._current_frames()) - 1

    def slack(self, name: str) -> int:
        """Return by how much threads from the start may raise a level: they may wait elsewhere now, and hold more."""
        return self._others * find_resource(name).per_waiting_thread

    def start(self, identities: Identities) -> None:
        """Record how full bounded owners are, and which threads and handles exist, when the series begins."""
        self._identities = identities
        self._threads = thread_ids()
        self._owners.restart()

    def explain(self, sampler: Sampler, name: str, most: int) -> Explanation:
        """Look for an explanation of growth other than a leak, for a test that gets at most `most` iterations."""
        filling = self._owners.filling(name, self._new_handles(sampler, name))
        if filling is not None and (rate := self._compute_explained_rate(filling, sampler, name)):
            if (at_most := _compute_full_level(filling, sampler, name, most)) is not None:
                each, full = (_format_about(value, name) for value in (filling.retained / filling.entries, at_most))
                return Explanation(f"cache filling: {filling.text}, {each} each, at most {full}", rate, at_most=at_most)
            state = "has just become full" if filling.full else "still filling"
            return Explanation(f"bounded cache {state}: {filling.text}", rate, filling.full)
        return self.explain_otherwise(sampler, name)

    def explain_otherwise(self, sampler: Sampler, name: str) -> Explanation:
        """Look for an explanation other than a cache with a readable bound."""
        if find_resource(name).exact_counter and (filled := self._explain_by_buffers(sampler, name)):
            return filled
        if cached := self._caches.explain(sampler, name):
            return Explanation(f"bounded cache still filling: {cached}")
        if traced := self._explain_by_tracers(sampler, name):
            return Explanation(traced)
        text = _explain_by_thread_caches(sampler, name, quiet_heap=self._quiet_heap)
        return Explanation(text, isolate=bool(text))

    def _explain_by_buffers(self, sampler: Sampler, name: str) -> Explanation | None:
        at_most = self._buffers.full_level(sampler, name)
        self._again_in = _SECOND_LOOK_ITERATIONS if self._buffers.needs_second_look(sampler) else self._again_in
        if at_most is None:
            return None
        reason = "memory that was allocated earlier is touched for the first time"
        return Explanation(f"{reason}: at most {_format_about(at_most, name)}", at_most=at_most)

    def innocent_owners(self) -> frozenset[int]:
        """Return the ``id()`` of caches that may grow as well, but do not hold the leak."""
        return self._owners.identities()

    def _compute_explained_rate(self, filling: Filling, sampler: Sampler, name: str) -> float:
        """Return `_rate_of` for the entries; one that may hold any amount explains up to two rises of the counter."""
        if filling.retained == inf and 2 * filling.entries < sampler.samples.rises(name):
            return 0.0
        return _rate_of(filling.retained, sampler, name)

    def _new_handles(self, sampler: Sampler, name: str) -> frozenset[Hashable]:
        if name in sampler.instruments.folders:
            return frozenset(sampler.instruments.folders[name].names())
        if find_resource(name).made_of != "handles":
            return frozenset()
        return new_handles(self._identities, take_identities(), name)

    def restart_when_full(self) -> bool:
        """Return whether the series may start again because a cache has just become full; if so, count the restart."""
        if self._filled >= _MAX_FULL_RESTARTS:
            return False
        self._filled += 1
        self._note_restart()
        return True

    def starts_again(self, sampler: Sampler, name: str) -> bool:
        """Return whether the caller must start the series again: most growth ended late, or was frozen garbage."""
        if self.restarts - self._filled >= _MAX_RESTARTS or find_resource(name).of_test:
            return False
        settled = _ended_late(sampler, name)
        if not settled and not self._is_frozen_garbage(sampler, name):
            return False
        sampler.patient = sampler.patient or settled
        self._note_restart()
        return True

    def _note_restart(self) -> None:
        self.restarts += 1
        self._confirming.clear()
        self._growing.clear()
        self._buffers.restart()

    def _is_frozen_garbage(self, sampler: Sampler, name: str) -> bool:
        """Return whether most of the growth is garbage that was alive when it was frozen; if so, objects stay unfrozen.

        A single iteration may leave more of such garbage than a small leak retains. So memory is checked twice: the
        garbage since the first check must be most of the growth since then.
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
            self._again_in = _SECOND_LOOK_ITERATIONS
        return False

    def set_others_aside(self, sampler: Sampler, name: str) -> None:
        """Stop counting entries that other processes use, if a shared folder has gained entries.

        Unless this process created or uses all other ones, the test then rests: entries that arrive during the rest
        stop counting too, and so do earlier ones with similar names.
        """
        if name not in sampler.instruments.folders or sampler.samples.above_start(name) <= 0:
            return
        sampler.settling.set_aside_used(name)
        gained = sampler.samples.above_start(name)
        # If this process created or uses all of the gained entries, no rest is needed.
        if gained > sampler.instruments.folders[name].own:
            seconds = self._take_rest_seconds(
                _ARRIVALS_PER_REST * sampler.settling.seconds_per_iteration() * sampler.samples.n / gained
            )
            if seconds:
                sampler.settling.rest(seconds, name)

    def confirm_in(self, sampler: Sampler, name: str, slope: float) -> int:
        """Return how many more iterations are needed to attribute the growth to the test; 0 for none.

        Growth of a shared folder must continue after a rest: until then, another process that was busy and has finished
        looks the same. Growth of memory must continue if much of it was garbage, or if there are large buffers.
        """
        again, self._again_in = self._again_in, 0
        if again or name not in sampler.instruments.folders or slope <= 0:
            return again
        level, (then, at) = sampler.samples.level(name), self._growing.get(name, (0, sampler.samples.n))
        if sampler.samples.n > at and level - then >= _MIN_CONFIRMED_SHARE * slope * (sampler.samples.n - at):
            return 0
        self._growing[name] = level, sampler.samples.n
        return min(
            _MAX_CONFIRMING_ITERATIONS, max(_MIN_CONFIRMING_ITERATIONS, round(_MIN_CONFIRMING_ITERATIONS / slope))
        )

    def background(self, sampler: Sampler, name: str, slope: float) -> str:
        """Return what the resource gained in a rest, as text; empty without one or if the test adds over twice as much.

        Only threads that were there when the series began, and children, can be the cause. A pool that the test uses
        may be among them, but it does nothing while the test rests.
        """
        resource = find_resource(name)
        if (
            resource.of_test
            or name in sampler.instruments.folders
            or slope <= 0
            # No other thread from the start of the series and no child exists that could work while the test rests.
            or not (len(thread_ids() & self._threads) > 1 or sampler.children)
        ):
            return ""
        pace = slope / sampler.settling.seconds_per_iteration()
        seconds = self._take_rest_seconds(
            _ARRIVALS_PER_REST * sampler.settling.seconds_per_iteration() / min(1.0, slope)
        )
        if not seconds:
            return ""
        gained = sampler.settling.rest(seconds, name)
        if 2 * gained < pace * seconds or gained <= 0:
            return ""
        pace_of_it = f"+{format_amount(gained, resource.unit)} in {seconds:.2g} s"
        tests = sorted({self._left[thread] for thread in thread_ids() if thread in self._left})
        return f"{pace_of_it}, after {' and '.join(tests)} left a thread running" if tests else pace_of_it

    def _take_rest_seconds(self, wanted: float) -> float:
        """Return the length of the next rest in seconds, and add it to the total; 0 if no time for rests is left."""
        if self._rested >= _MAX_TOTAL_REST_SECONDS:
            return 0.0
        seconds = min(_MAX_REST_SECONDS, max(_MIN_REST_SECONDS, wanted))
        self._rested += seconds
        return seconds

    def _explain_by_tracers(self, sampler: Sampler, name: str) -> str:
        """Explain growth by coverage.py's tracers, one for each thread; empty if they do not account for it."""
        gained = tracers_of_coverage() - self._tracers
        if gained * find_resource(name).per_tracer < sampler.samples.above_start(name) or not gained:
            return ""
        return f"coverage.py keeps a tracer for each thread: {gained} since the start; measure without coverage"


def _ended_late(sampler: Sampler, name: str) -> bool:
    """Wait for resources that end by themselves, and return whether that undoes at least half of the growth.

    Memory is waited for only if threads, child processes or tasks may end. These must then release as much as the
    second half of the iterations has added: the first ones also fill the caches of allocators.
    """
    samples, settling = sampler.samples, sampler.settling
    if find_resource(name).scarce:
        stood = samples.above_start(name)
        return settling.settle() and 2 * samples.above_start(name) <= stood
    added = samples.level(name) - samples.columns[name][samples.n // 2]
    return settling.may_end() and settling.settle() and sampler.came_down(name) >= added > 0


def _compute_full_level(filling: Filling, sampler: Sampler, name: str, most: int) -> float | None:
    """Return the level above the start at which the bounded owners will be full; None if it is unknown or inconclusive.

    It is inconclusive if the remaining iterations can fill the owners (waiting shows more), if their entries do not
    account for the growth (the rest is then judged), and for scarce resources, which the process may run out of before.
    """
    if find_resource(name).scarce:
        return None
    n, gained = sampler.samples.n, sampler.samples.above_start(name)
    if filling.full or filling.left * n <= filling.entries * (most - n) or filling.at_most == inf:
        return None
    if filling.retained + n * find_resource(name).tolerance < _MIN_ACCOUNTED_SHARE * gained:
        return None
    return gained + max(0.0, filling.at_most - filling.retained)


def _rate_of(retained: float, sampler: Sampler, name: str) -> float:
    """Return the growth per iteration that entries account for; 0 if that is too little to matter.

    Objects are counted. The memory of entries is an estimate: at least half of the growth explains all of it
    (infinity), less explains nothing.
    """
    gained = sampler.samples.above_start(name)
    if find_resource(name).made_of in ("memory", "blocks"):
        return inf if 2 * retained >= gained else 0.0
    return retained / sampler.samples.n if retained >= _MIN_EXPLAINED_SHARE * gained else 0.0


def _format_about(value: float, name: str) -> str:
    return format_amount(round(value), find_resource(name).unit)


class _EmptiedCaches:
    """Caches that can be emptied on suspicion, at most once per iteration, to see how far a counter falls."""

    def __init__(self) -> None:
        self._caches = RefillingCaches()
        self._explained: dict[str, str] = {}
        self._emptied_at = -1
        self._entries = 0

    def explain(self, sampler: Sampler, name: str) -> str:
        """Name the caches that can be emptied, if most of the growth is in them; else return an empty text."""
        if find_resource(name).scarce:
            return ""
        if name not in self._explained:
            if self._emptied_at != sampler.samples.n:
                self._emptied_at = sampler.samples.n
                self._entries = self._caches.empty()
            # A few entries do not explain many rises. If the counter falls nevertheless, the cause is another one, such
            # as an arena of the interpreter's allocator that became free: 1 MiB of mapped memory at once.
            enough = 2 * self._entries >= sampler.samples.rises(name)
            if enough and 2 * sampler.came_down(name) >= sampler.samples.above_start(name) > 0:
                # Record the explanation, because the fall cannot be seen again: it is attributed to the harness, so the
                # series continues as if the entries still existed.
                self._explained[name] = "a cache of the standard library that empties on request (re, linecache)"
        return self._explained.get(name, "")


def _explain_by_thread_caches(sampler: Sampler, name: str, *, quiet_heap: bool) -> str:
    """Explain uneven growth by the allocator's caches of other threads; empty if they cannot account for it.

    glibc keeps up to 230 KB of freed blocks for each thread, and counts them as in use. The harness fills the cache of
    its own thread beforehand, but cannot fill those of other threads.
    """
    if (
        not find_resource(name).thread_caches
        or quiet_heap
        or sampler.samples.above_start(name) > _MAX_THREAD_CACHES_BYTES
    ):
        return ""
    share, readings = sampler.settling.share_of_other_threads(), sampler.samples.series(name).readings
    if share < _MIN_OTHER_THREADS_SHARE or is_steady(readings):
        return ""
    return (
        f"other threads did {share:.0%} of the work, and malloc keeps freed blocks for each: uneven growth, "
        f"+{format_amount(sampler.samples.above_start(name), 'bytes')} so far; --leakcheck-isolate would decide it"
    )
