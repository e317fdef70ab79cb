"""Judge one resource of a running test, with a hint at an innocent cause if there is a suspicion.

A suspicion is the verdict that the readings alone would give. The looks for a cause
(`InnocentGrowth`) begin only then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf, isfinite
from typing import Final, TypeAlias

from pytest_leakcheck.attribution.handles import live_children
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.exhaustion import device_lost
from pytest_leakcheck.judge.judge_series import NO_HINT, Context, Hint, judge
from pytest_leakcheck.judge.provenance import Provenance, qualify
from pytest_leakcheck.model import resources
from pytest_leakcheck.model.finding import RED, Verdict
from pytest_leakcheck.model.resources import (
    BLOCKS,
    CHILDREN,
    DESCRIPTORS,
    GAUGE_PREFIX,
    HEAP,
    MAPPED,
    OBJECTS,
    REFERENCES,
    RESIDENT,
    find_resource,
)
from pytest_leakcheck.probes.memory import shared_bytes
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.readings import MAX_WAITING_BYTES, Samples
from pytest_leakcheck.runner.sampler import Sampler


class StartAgain:
    """The series must start again: it grew by late ends, frozen garbage or a cache now full."""


# Bytes that rise in fewer iterations than this share of those in which a count of objects rises
# come in steps.
_MIN_STEADY_RATIO: Final = 0.5
# Objects of the start that are gone have been replaced by new ones if they are at least this share
# of what has grown.
_MIN_REPLACED_SHARE: Final = 0.1
# While a test retains no more than so many units of a counter that is not in bytes, it may repeat a
# suspected leak.
_MAX_WAITING_COUNT: Final = 1_000_000
# Growth of handles (descriptors, threads, ...) may be a pool that is filling. It is called a leak
# after this many iterations at the latest, or once it has this many handles, this share of what is
# left of the limit, or this many child processes.
_POOL_ITERATIONS: Final = 250
_MAX_POOL: Final = 300
_MAX_LIMIT_SHARE: Final = 0.25
_MAX_WAITING_CHILDREN: Final = 50
# About the time that a search for the cause takes.
_SEARCH_SECONDS: Final = 1.0
# The most memory from malloc that goes with a block of Python's own allocator, for a lock or for
# its entry in a table.
_MAX_BYTES_BESIDE_BLOCK: Final = 64
# Resident memory grows by mappings if these grow at no less than this share of its rate, and the
# other way round; and past malloc if the bytes in use grow at no more than that one.
_MIN_SAME_RATIO: Final = 0.75
_MAX_HEAP_RATIO: Final = 0.1
# Bytes. A smaller rise is not looked at.
_MIN_RISE: Final = 1 << 20
Decision: TypeAlias = Verdict | StartAgain | None


class ResourceJudge:
    """The judge of the resources of one run."""

    def __init__(self, run: MeasurementRun, sampler: Sampler) -> None:
        self._run = run
        self._sampler = sampler
        # The level above the start that each resource had reached when a full cache made the series
        # start again.
        self._carried: dict[str, int] = {}
        # The handles whose growth may end by itself. The memory that grows may be theirs.
        self._waiting: set[str] = set()
        # The first growth of a look that may end by itself, and is judged later; the caller empties
        # it before each look.
        self.early: Verdict | None = None

    def decide(self, budget: Budget, *, final: bool, unbounded: bool = False) -> Decision:
        """Return the final verdict, or None if more iterations are needed.

        `final`: no iteration will follow. `unbounded`: what grows is no pool or cache that fills.
        """
        sampler, name = self._sampler, budget.resource
        device = sampler.instruments.device_for(name)
        if device is not None and device.lost:
            return device_lost(sampler.samples.series(name), budget, device.lost)
        context = self._context(budget, final=final, unbounded=unbounded)
        suspicion = self._suspect(budget, context)
        self._waiting.discard(name)
        if suspicion is None:
            self._note_slow(budget, context)
            return None
        waits = not (final or unbounded or self._run.room.short)
        if waits and self._may_end_by_itself(budget, suspicion, context):
            if suspicion.traits.is_pooled:
                self._waiting.add(name)
            self.early = self.early or suspicion
            return None
        undecided = suspicion.outcome == "inconclusive" and sampler.samples.above_start(name) > 0
        if suspicion.outcome not in ("leak", "over_budget") and not undecided:
            return qualify(suspicion, find_provenance(sampler, name))
        hint = self._find_hint(budget, context, suspicion)
        if isinstance(hint, StartAgain):
            return hint
        # A look may have waited for resources that end by themselves, and corrected the last
        # reading.
        sampler.settling.put_back()
        verdict = judge(sampler.samples.series(name), budget, context, hint)
        return None if verdict is None else qualify(verdict, find_provenance(sampler, name))

    def _suspect(self, budget: Budget, context: Context) -> Verdict | None:
        """Return the verdict by readings; if not ``ok``, without entries of unknown origin."""
        samples, settling, name = self._sampler.samples, self._sampler.settling, budget.resource
        settling.correct_folder(name)
        suspicion = judge(samples.series(name), budget, context)
        if (
            suspicion is None
            or suspicion.outcome == "ok"
            or not settling.correct_folder(name, set_aside=True)
        ):
            return suspicion
        return judge(samples.series(name), budget, context)

    def doubts(self, budget: Budget, verdict: Verdict) -> bool:
        """Return whether the readings since an ``ok`` raise a suspicion, or pass the level."""
        # Handles are judged after some 13 iterations, memory after 50 to 230. What grows later must
        # not stay ``ok``.
        if verdict.outcome != "ok":
            return False
        name, slack = budget.resource, budget.traits.slack
        above = self._sampler.samples.above_start(name) + self._carried.get(name, 0)
        if budget.level is not None and above > budget.level + slack:
            return True
        series = self._sampler.samples.series(budget.resource)
        suspicion = judge(series, budget, self._context(budget, final=False))
        return suspicion is not None and suspicion.outcome in RED

    def in_order(self, budgets: Iterable[Budget]) -> list[Budget]:
        """Order budgets for judgement: bytes follow counts of objects that show the same growth."""
        return sorted(budgets, key=lambda budget: self._follows_objects(budget.resource))

    def _follows_objects(self, name: str) -> bool:
        """Return whether bytes grow by small objects, or in steps."""
        # Small objects take blocks of which `heap` counts a part, such as their locks and the
        # tables that hold them. A table doubles now and then, and an arena has room for many
        # objects: such growth tells no rate, and is certain by chance.
        samples, resource = self._sampler.samples, find_resource(name)
        if resource.scarce or resource.unit != "bytes" or not samples.has(name):
            return False
        if samples.has(BLOCKS) and samples.above_start(
            name
        ) <= _MAX_BYTES_BESIDE_BLOCK * samples.above_start(BLOCKS):
            return True
        rises = samples.rises(name)
        return any(
            rises < _MIN_STEADY_RATIO * samples.rises(counted)
            for counted in (OBJECTS, BLOCKS)
            if samples.has(counted)
        )

    def _may_end_by_itself(self, budget: Budget, suspicion: Verdict, context: Context) -> bool:
        """Return whether more cheap iterations may show the end of a pool or a cache that fills."""
        # A number of iterations that the user has set is run to its end, as long as the growth is
        # harmless.
        effort, resource, n = context.effort, suspicion.traits, self._sampler.samples.n
        left = self._run.limits.get(suspicion.resource, inf) - self._sampler.samples.level(
            suspicion.resource
        )
        if not suspicion.is_growth or suspicion.level > _most_while_waiting(resource, left):
            return False
        if effort.iterations:
            return True
        is_certain = not resource.is_pooled and budget.judges_all_growth
        if is_certain and context.is_fatal(suspicion.slope) and not self._waiting:
            return False
        is_small = (
            n < _POOL_ITERATIONS
            and suspicion.level <= _MAX_POOL
            and not self._sampler.samples.retains_much()
        )
        # Below a level that must hold for longer, a pool may still become full.
        is_below = budget.level is None or (
            budget.over is not None and suspicion.level <= budget.level
        )
        is_pool = resource.is_pooled and is_below and is_small
        if resource.scarce and not is_pool:
            # A level that the user allows has been passed, or memory is about to be judged that
            # these handles own.
            return False
        return self._run.time.measured_seconds < min(effort.min_time, effort.max_time)

    def _note_slow(self, budget: Budget, context: Context) -> None:
        """Note memory growth whose horizon is beyond a search, or whose cause may be known."""
        sampler = self._sampler
        seconds = (
            context.effort.usual - sampler.samples.n
        ) * sampler.settling.seconds_per_iteration()
        if seconds < _SEARCH_SECONDS and not self._run.causes.of(budget.resource):
            return
        suspicion = judge(
            sampler.samples.series(budget.resource), budget, replace(context, unbounded=True)
        )
        if suspicion is not None and suspicion.is_growth:
            self.early = self.early or suspicion

    def _find_hint(self, budget: Budget, context: Context, suspicion: Verdict) -> Hint | StartAgain:
        """Look for causes until they explain the growth; partial ones leave the rest to others."""
        run, sampler = self._run, self._sampler
        hint = self._counted_elsewhere(budget, suspicion)
        if hint.rate:
            rest = judge(sampler.samples.series(budget.resource), budget, context, hint)
            if rest is None or rest.outcome == "ok":
                return hint
        effort, seconds_each = run.plan.effort, sampler.settling.seconds_per_iteration()
        cheap = (effort.min_time - run.time.measured_seconds) / max(1e-9, seconds_each)
        most = max(effort.usual, min(effort.most, sampler.samples.n + int(cheap)))
        for look in run.innocent.looks():
            found = look(sampler, suspicion, most)
            if found is None:
                continue
            if found.ended and not (found.text and run.time.out_of_time):
                self.carry_levels() if found.text else self._carry_what_stays()
                return StartAgain()
            if isfinite(found.rate):
                part = replace(hint, rate=hint.rate + found.rate)
                rest = judge(sampler.samples.series(budget.resource), budget, context, part)
                if rest is not None and rest.is_growth:
                    hint = part
                    continue
                if rest is None or rest.outcome != "ok":
                    found = replace(found, at_most=None)
            return replace(found, rate=inf, replaced=hint.replaced)
        return hint

    def carry_levels(self) -> None:
        """Note the levels reached: growth until a cache was full still counts against a level."""
        samples = self._sampler.samples
        for name in (one.resource for one in self._run.plan.budgets if samples.has(one.resource)):
            # Those that replace objects of the start are no more than before.
            replaced = self._sampler.frozen.gone if name == OBJECTS else 0
            self._carry(name, samples.above_start(name) - replaced)

    def _carry_what_stays(self) -> None:
        """Note the levels of descriptors and gauges as they are, though other resources ended."""
        samples, instruments = self._sampler.samples, self._sampler.instruments
        # While a thread releases descriptors late, those that wait for it end, too.
        paced = self._sampler.settling.is_paced
        for name in (one.resource for one in self._run.plan.budgets if samples.has(one.resource)):
            if name.startswith(GAUGE_PREFIX):
                self._carry(name, instruments.counter(name)() - samples.columns[name][0])
            elif name == DESCRIPTORS and not paced:
                self._carry(name, instruments.in_tree(name)() - samples.columns[name][0])

    def _carry(self, name: str, level: int) -> None:
        self._carried[name] = self._carried.get(name, 0) + max(0, level)

    def _context(self, budget: Budget, *, final: bool, unbounded: bool = False) -> Context:
        run, sampler, name = self._run, self._sampler, budget.resource
        resource = find_resource(name)
        limit = run.limits.get(name)
        compared = name == RESIDENT and budget.judges_all_growth and sampler.samples.has(HEAP)
        elsewhere = resource.of_tree and sampler.children > 0
        risen = (
            name in (RESIDENT, MAPPED)
            and not budget.explicit
            and sampler.samples.above_start(name) >= _MIN_RISE
        )
        return Context(
            final,
            # With children, the counter covers the process tree, but the limit applies to each
            # process.
            headroom=None
            if limit is None or elsewhere
            else max(0, limit - sampler.samples.level(name)),
            carried=self._carried.get(name, 0),
            exact_flat=compared and self._sampler.samples.judged_growth(HEAP).state == "flat",
            in_child=name == RESIDENT and bool(sampler.samples.grown_children()),
            elsewhere=elsewhere,
            idle=self._idle_bytes(name) if risen else inf,
            touched=risen and name == MAPPED and self._grows_as(RESIDENT, MAPPED),
            unbounded=unbounded,
            # With the waits and collections of the harness, which take their share of the time.
            seconds=run.time.seconds_each if run.time.out_of_time else 0.0,
            stopped=run.room.ended is not None,
            effort=run.plan.effort,
        )

    def _idle_bytes(self, name: str) -> float:
        """Return how much of malloc's old memory may become resident; infinity if unknown."""
        samples, heap = self._sampler.samples, self._sampler.instruments.heap
        risen = samples.above_start(RESIDENT if samples.has(RESIDENT) else name)
        idle = heap.idle(max(0, risen)) if heap is not None else None
        if (
            idle is None
            or samples.judged_growth(HEAP).slope
            > _MAX_HEAP_RATIO * samples.judged_growth(name).slope
        ):
            return inf
        arenas, large = idle
        return arenas if self._grows_as(MAPPED, RESIDENT) else arenas + large + shared_bytes()

    def _grows_as(self, name: str, other: str) -> bool:
        """Return whether a counter grows, nearly as fast as another growing one or faster."""
        samples = self._sampler.samples
        if not (samples.has(name) and samples.has(other)):
            return False
        grown, as_fast = samples.judged_growth(name), samples.judged_growth(other)
        return (
            grown.state == as_fast.state == "growing"
            and grown.slope >= _MIN_SAME_RATIO * as_fast.slope
        )

    def _counted_elsewhere(self, budget: Budget, suspicion: Verdict) -> Hint:
        """Return the growth that other counters show, or that replaces objects of the start."""
        samples = self._sampler.samples
        if budget.resource == REFERENCES:
            return self._run.innocent.explain_references(self._sampler, suspicion.slope)
        if budget.resource == OBJECTS:
            gone = self._sampler.frozen.gone
            # A few that end once are replaced by nothing.
            is_replaced = gone >= _MIN_REPLACED_SHARE * samples.above_start(OBJECTS)
            return Hint(rate=gone / samples.n, replaced=gone) if is_replaced else NO_HINT
        if not _yields_to_exact_counters(budget):
            return NO_HINT
        shown = samples.exact_rate()
        if budget.resource == RESIDENT and self._grows_as(MAPPED, RESIDENT):
            # What is mapped is judged, with the call that maps it.
            shown += samples.judged_growth(MAPPED).slope
        return Hint(rate=max(0.0, shown))


def _yields_to_exact_counters(budget: Budget) -> bool:
    """Return whether exact counters account for it: it has a resolution and no explicit budget."""
    return bool(budget.traits.resolution) and not budget.explicit


def _most_while_waiting(resource: resources.Resource, left: float) -> float:
    """Return the level above which growth is judged at once, in its unit; `left` of its limit."""
    if resource.name == CHILDREN:
        return _MAX_WAITING_CHILDREN
    if resource.scarce:
        return _MAX_LIMIT_SHARE * left
    return MAX_WAITING_BYTES if resource.unit == "bytes" else _MAX_WAITING_COUNT


def find_provenance(sampler: Sampler, resource: str) -> Provenance:
    """Return what is known of the count of a resource in addition to its readings."""
    instruments = sampler.instruments
    if resource == RESIDENT and sampler.children:
        return _describe_children(sampler.samples)
    if (device := instruments.device_for(resource)) is not None:
        return Provenance(on_devices=device.describe_growth())
    if (folder := instruments.folders.get(resource)) is not None:
        return Provenance(unknown=folder.aside, folder=folder.path, uncounted=folder.uncounted)
    return instruments.find_disturbance(resource)


def _describe_children(samples: Samples) -> Provenance:
    running, grown = live_children(), samples.grown_children()
    others = len(running.keys() - samples.children())
    what = (
        "1 child process: its memory" if others == 1 else f"{others} child processes: their memory"
    )
    more = f", and in {len(grown) - 1} more" if len(grown) > 1 else ""
    return Provenance(
        uncounted=f"{what} is not counted" if others else "",
        grown_in=f"in child {grown[0]}{more}: {running.get(grown[0], 'ended')}" if grown else "",
    )
