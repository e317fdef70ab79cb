"""Judge a series (one counter's readings, one per iteration) by its readings, a budget and a hint.

This module reads no counter and no clock. The questions, in this order:

0. Does a count in other processes rise, and fall now and then? If their garbage collectors account
   for the falls, only they release the resource; if something unknown does, nothing else can be
   decided.
1. Does the series grow (`judge.growth`)? That is enough for countable resources (descriptors,
   threads, ...). Memory and gc objects must grow for a minimum number of iterations, the horizon,
   because a bounded cache that is still filling may explain it. If the growth would reach the limit
   of the process within a production run, it is a leak at once.
   1a, before it: does something other than the test cause the growth?
   1b, after it: does a bounded cache account for it?
2. Is the level exceeded? That needs no horizon, only a counter that has settled.
3. Does only the garbage collector release the resource? Question 1 is asked of the running sum of
   what it released.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from math import ceil, inf, isfinite
from operator import add
from typing import Any, Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort
from pytest_leakcheck.judge.growth import (
    FIRST_LOOK,
    Growth,
    decays,
    detect_sawtooth,
    detection_floor,
    growth,
)
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import HEAP, RESIDENT, Resource
from pytest_leakcheck.model.units import format_amount, format_count, format_rate


@dataclass(frozen=True, slots=True)
class Profile:
    """How many iterations a kind of counter is observed for.

    `clean` is the minimum for an ``ok``: 13 iterations without a rise exclude a leak in every 3rd
    iteration with 99 % confidence; the 50 that memory needs exclude one in every 11th. A series may
    be called growing from the first look at or after `leak`. Growth is a leak only after `horizon`,
    because caches of up to about this size may fill.
    """

    clean: int
    leak: int
    horizon: int


SCARCE: Final = Profile(clean=13, leak=16, horizon=0)
RETAINED: Final = Profile(clean=50, leak=16, horizon=200)
# For countable resources whose count falls in other processes: it takes longer to see whether
# anything closes them.
_RELEASED_ELSEWHERE: Final = Profile(clean=50, leak=50, horizon=0)
# For growth that no exact counter shows: it is fast (`Resource.default_rate`), and not a cache that
# fills.
_UNSHOWN: Final = Profile(clean=50, leak=16, horizon=20)
# Such growth needs no horizon once it has reached this level, in bytes.
_MUCH: Final = 64 << 20
# With more idle memory, in bytes, it takes too long until growth exceeds that.
_MOST_IDLE: Final = 256 << 20
# Growth of resident memory is not fragmentation if its rate is at least this share of the earlier
# rate (and at most the inverse), and if it has risen by at least this multiple of its resolution.
_LASTING_RATIO: Final = 0.75
_MIN_LASTING_LEVELS: Final = 4
# Growth that a cache explains is tolerated, multiplied by this factor. An evicted entry may live
# for another iteration, and an entry may have parts that are not visible through its cache (an open
# text file has 4 objects; the collector sees 3).
_EXPLAINED_MARGIN: Final = 1.5
# Malloc may serve the same requests by blocks of other sizes for a while, which hides some hundred
# bytes of growth. With the cache of freed blocks emptied for each reading, 1 of 56 leaks of the
# size of the floor by trial was not found.
_ALLOCATOR_MARGIN: Final = 1.5
# A level counts as exceeded once the last eighth of the run lies above it, and looks are a quarter
# apart.
_LEVEL_MARGIN: Final = 1.25
# Growth that takes longer to reach the level is so slow that a library may retain it by design.
_FAR_ITERATIONS: Final = 1_000
# What other processes have opened is released by their collectors only if these account for this
# share of it so far: they run now and then, and the rest is still open.
_MIN_RELEASED_SHARE: Final = 0.25
# The recommended time is this multiple of what the iterations took so far.
_TIME_MARGIN: Final = 1.5


@dataclass(frozen=True, slots=True)
class Context:
    """The facts about the run that a verdict depends on, in addition to the series itself.

    Attributes:
        final: No further iteration will follow, so a verdict must be given.
        headroom: How far the resource can still grow before the process dies, in its unit; None if
            unknown.
        carried: If the series was started again: the level above the first start that the resource
            had reached by then.
        exact_flat: For resident memory: the exact counter of memory (`heap`) is flat.
        in_child: For resident memory: most of the growth is that of a child process, in which
            nothing else is counted.
        elsewhere: Other processes hold a part of the resource. They collect garbage only now and
            then, and some may not report it.
        idle: For `rss` and `mmap`: how many bytes of malloc and of shared memory may have become
            resident since the start.
        touched: For `mmap`: resident memory grows as fast, so that what is mapped is used.
        unbounded: What holds the resource is only ever added to, so that the growth is no cache
            that fills.
        seconds: Seconds per iteration, if the time for the test is over; else 0.
        stopped: No room is left for another iteration, however much time the test has.
    """

    final: bool = False
    headroom: int | None = None
    carried: int = 0
    exact_flat: bool = False
    in_child: bool = False
    elsewhere: bool = False
    idle: float = inf
    touched: bool = False
    unbounded: bool = False
    seconds: float = 0.0
    stopped: bool = False
    effort: Effort = field(default_factory=Effort)

    def is_fatal(self, slope: float) -> bool:
        """Return whether the represented production run would die of this growth per iteration."""
        return self.headroom is not None and slope * self.effort.run_length >= self.headroom


@dataclass(frozen=True, slots=True)
class Hint:
    """An innocent cause of growth.

    Attributes:
        text: The cause, for the report; empty if it accounts for only a part of the growth.
        rate: The growth per iteration that it accounts for, in the unit of the resource. The rest
            is judged.
        at_most: The level above the start at which this growth will end, if the test has too few
            iterations to reach it.
        advice: What the user can do, if more iterations would not help.
        ended: The cause has just ended, so a series that begins now is flat.
        within: With advice: the iterations within which the cause ends, at their pace in
            production; 0 if that is no matter.
        replaced: How many units of the level replace others that existed at the start. They are no
            part of it.
    """

    text: str = ""
    rate: float = inf
    at_most: float | None = None
    advice: str = ""
    ended: bool = False
    within: float = 0.0
    replaced: int = 0


NO_HINT: Final = Hint(rate=0.0)


@dataclass(frozen=True, slots=True)
class _Case:
    """One series with its growth.

    `collected` is the growth of what the collector released, `wander` the largest late fall.
    """

    series: Series
    budget: Budget
    context: Context
    hint: Hint
    resource: Resource
    profile: Profile
    tolerance: float
    grown: Growth
    collected: Growth
    level: int
    wander: int

    @property
    def noise(self) -> int:
        """Levels closer than this cannot be distinguished in this run."""
        return max(self.resource.resolution, self.wander)

    @property
    def n(self) -> int:
        return self.series.iterations

    @property
    def horizon(self) -> int:
        return min(self.profile.horizon, self.context.effort.usual)

    @property
    def is_within_level(self) -> bool:
        """Whether this may be a pool that has not yet reached the level that the user allows."""
        level = self.budget.level
        return (
            self.resource.is_pooled
            and self.budget.over is None
            and level is not None
            and self.level <= level
        )

    def say(self, outcome: Outcome, reason: str, advice: str = "", **changes: Any) -> Verdict:
        """Create the verdict. ``changes`` replace the figures of this case."""
        values = {
            "slope": self.grown.slope,
            "level": self.level,
            "iterations": self.n,
            "kind": self.series.kind,
        }
        return Verdict(
            self.series.resource,
            outcome,
            reason=reason,
            advice=advice,
            explicit=self.budget.explicit,
            tolerated=outcome == "unclosed" and self.budget.unclosed == "warn",
            **(values | changes),
        )

    def amount(self, value: float) -> str:
        return format_amount(value, self.resource.unit)

    def rate(self, value: float) -> str:
        return format_rate(value, self.resource.unit)


def judge(
    series: Series, budget: Budget, context: Context | None = None, hint: Hint = NO_HINT
) -> Verdict | None:
    """Judge two or more readings; None if more are needed, but never with ``context.final``."""
    case = _examine(series, budget, context or Context(), hint)
    return (
        _check_releases_elsewhere(case)
        or _check_other_cause(case)
        or _check_growth(case)
        or _check_filling(case)
        or _check_level(case)
        or _check_unclosed(case)
        or _check_settled(case)
        or _explain_undecided(case)
    )


def judge_known(series: Series, budget: Budget) -> Verdict | None:
    """Judge a few iterations as if their cause were known; None unless all rise by the same amount.

    Unclosed are the resources of which the collector releases as many after each iteration.
    """
    case = _examine(series, budget, Context(), NO_HINT)
    rise, *others = (later - earlier for earlier, later in pairwise(series.readings))
    released = min(series.released, default=0)
    if any(other != rise for other in others) or any(one != released for one in series.released):
        return None
    if rise > case.tolerance:
        reason = f"{case.rate(rise)} in each of {format_count(case.n, 'iteration')}"
        return case.say("leak", reason, slope=float(rise))
    if not released or budget.unclosed == "allow":
        return None
    return _say_unclosed(case, float(released), "the garbage collector")


def judge_once(series: Series, budget: Budget) -> Verdict:
    """Judge a block that ran once by the difference of its two readings and a budgeted level."""
    case = _examine(series, budget, Context(final=True), NO_HINT)
    readings = case.series.readings
    level, allowed, released = (
        readings[-1] - readings[0],
        case.budget.level or 0,
        sum(case.series.released),
    )
    if level > allowed + case.resource.slack:
        noisy = not case.resource.scarce and level - allowed <= case.noise
        reason = f"+{case.amount(level)} after the block, {case.amount(allowed)} allowed"
        advice = "a block runs once, so its line is not searched for: leakcheck.steps() repeats it and names the line"
        return case.say(
            "inconclusive" if noisy else "over_budget", reason, advice, level=level, slope=0.0
        )
    if released and case.budget.unclosed != "allow":
        much = (
            f"{released} {case.resource.plural}"
            if case.resource.unit == "count"
            else case.amount(released)
        )
        reason = f"{much} released by the garbage collector only"
        return case.say("unclosed", reason, slope=float(released), level=level)
    return case.say("ok", "", level=level, slope=0.0)


def _examine(series: Series, budget: Budget, context: Context, hint: Hint) -> _Case:
    resource = series.traits
    x = series.readings
    late = x[len(x) // 2 :]
    wander = max(top - value for top, value in zip(accumulate(late, max), late, strict=True))
    profile = RETAINED if budget.judges_all_growth else _UNSHOWN
    if resource.scarce:
        profile = _RELEASED_ELSEWHERE if context.elsewhere and wander else SCARCE
    explained = hint.rate if isfinite(hint.rate) else 0.0
    tolerance = resource.tolerance + budget.per_iteration + explained * _EXPLAINED_MARGIN
    find = partial(
        growth,
        series.readings,
        first_look=profile.leak,
        exact=profile is SCARCE,
        stopped=context.stopped,
    )
    grown = find(tolerance)
    if budget.over is not None and grown.state != "growing":
        # What is tolerated per iteration counts against a level that must hold for so many.
        whole = find(tolerance - budget.per_iteration)
        grown = whole if whole.state == "growing" or not context.final else grown
    if grown.state == "growing":
        grown = replace(grown, slope=grown.slope - explained, earlier=grown.earlier - explained)
    collected = growth(tuple(accumulate(series.released, initial=0)), 0.0, SCARCE.leak, exact=True)
    # The minimum of the last quarter, so that neither a spike nor readings before a last fall
    # count.
    level = min(late[len(late) // 2 :]) - x[0] + context.carried - hint.replaced
    return _Case(
        series, budget, context, hint, resource, profile, tolerance, grown, collected, level, wander
    )


def _check_releases_elsewhere(case: _Case) -> Verdict | None:
    """Question 0: a count in other processes rises steadily, and falls now and then."""
    enough = case.n >= _RELEASED_ELSEWHERE.clean or case.context.final
    if (
        not (case.context.elsewhere and case.resource.scarce and enough)
        or case.budget.unclosed == "allow"
    ):
        return None
    x, released = case.series.readings, case.series.released
    opened = tuple(map(add, x, accumulate(released, initial=0))) if any(released) else x
    grown = growth(opened, case.tolerance, case.profile.leak)
    if grown.state == "growing" and sum(released) >= _MIN_RELEASED_SHARE * (opened[-1] - opened[0]):
        return _say_unclosed(case, grown.slope, "a garbage collector")
    # Neither growth nor level is judged if the reason of the falls is unknown, unless the count
    # never exceeds the level, or falls undo under half of the rises.
    teeth = detect_sawtooth(opened)
    if teeth is None:
        return None
    rise, fall = teeth
    highest = max(x) - x[0]
    within = case.budget.level is not None and highest <= case.budget.level
    if within or (case.grown.state == "growing" and case.grown.slope > rise / 2):
        return None
    reason = f"{case.rate(rise)}, and occasionally {fall:.3g} are released at once, by a child or its garbage collector"
    advice = (
        "close them when done; to see which it is, disable the garbage collector in the children"
    )
    return case.say("inconclusive", reason, advice, slope=float(rise))


def _check_other_cause(case: _Case) -> Verdict | None:
    """Question 1a: something else causes the growth, or ends it however long the test runs."""
    if not case.hint.advice or case.grown.state != "growing" or _ends_too_late(case):
        return None
    return case.say("inconclusive", case.hint.text, case.hint.advice)


def _ends_too_late(case: _Case) -> bool:
    """Return whether the process dies, or a production run is over, before the cause ends."""
    within, headroom = case.hint.within, case.context.headroom
    dies = within > 0 and headroom is not None and case.grown.slope * within - case.level > headroom
    return dies or within >= case.context.effort.run_length


def _check_growth(case: _Case) -> Verdict | None:
    """Question 1: proven growth that has lasted long enough, without an explanation."""
    is_excused = bool(case.hint.text) and not _ends_too_late(case)
    if (
        case.grown.state != "growing"
        or is_excused
        or case.is_within_level
        or _is_kept_by_allocator(case)
    ):
        return None
    idle = case.context.idle
    is_used = case.context.touched and case.level > idle and _lasts(case)
    held = (
        case.n >= case.horizon
        or case.context.unbounded
        or is_used
        or not case.budget.judges_all_growth
    )
    if case.budget.over is not None and case.budget.level is not None:
        return (
            _judge_extrapolation(case, case.budget.over, case.budget.level)
            if held or case.context.final
            else None
        )
    if not held and not case.context.is_fatal(case.grown.slope):
        return None
    reason = _describe_growth(case)
    if not case.budget.judges_all_growth and case.level <= idle:
        if idle <= _MOST_IDLE and not case.context.final:
            return None
        if isfinite(idle):
            reason += f", unless it is memory that was there at the start, up to {case.amount(idle)}, and is used only now"
        return case.say(
            "inconclusive",
            reason,
            f"to have it judged, set a budget: {case.series.resource}_budget()",
        )
    if case.budget.per_iteration and case.budget.explicit:
        reason += f", {case.rate(case.budget.per_iteration)} allowed"
    return case.say("leak", reason, _advise_allowance(case))


def _describe_growth(case: _Case) -> str:
    reason = f"{case.rate(case.grown.slope)} sustained over {format_count(case.n, 'iteration')}"
    if _is_unshown(case) and not case.context.in_child:
        reason += (
            ", while the exact memory counters do not grow: it is mapped, or allocated past malloc"
        )
    if case.hint.text:
        within, headroom = case.hint.within, case.context.headroom
        reason += (
            f"; {case.hint.text}, which is too late: +{case.amount(case.grown.slope * within)}"
        )
        reason += f" in {within:,.0f} iterations" + (
            f", {case.amount(headroom)} left" if headroom is not None else ""
        )
    return reason


def _check_filling(case: _Case) -> Verdict | None:
    """Question 1b: a bounded cache explains growth, and hides leaks up to about half as fast."""
    more, level, headroom = case.hint.at_most, case.budget.level, case.context.headroom
    if more is None or case.grown.state == "flat":
        return None
    end = more + case.context.carried
    dies = headroom is not None and end - case.level > headroom
    if dies or (level is not None and end > level + case.resource.slack):
        return None
    return case.say("ok", case.hint.text, floor=case.grown.slope / 2)


def _is_kept_by_allocator(case: _Case) -> bool:
    """Return whether resident memory may grow by fragmentation."""
    # Fragmentation slows down, and shows in no exact counter. Growth that keeps its rate is memory
    # that no allocator counts, such as pages of a mapping.
    if not _is_unshown(case):
        return False
    if case.budget.judges_all_growth and case.n < case.horizon:
        return True
    return not _lasts(case)


def _lasts(case: _Case) -> bool:
    """Return whether unshown growth keeps its rate, for long enough or up to a high level."""
    slope, earlier = case.grown.slope, case.grown.earlier
    keeps_rate = earlier > 0 and _LASTING_RATIO <= slope / earlier <= 1 / _LASTING_RATIO
    is_enough = case.n >= _UNSHOWN.horizon or case.level >= _MUCH
    return keeps_rate and is_enough and case.level >= _MIN_LASTING_LEVELS * case.resource.resolution


def _is_unshown(case: _Case) -> bool:
    """Return whether this is resident memory whose growth the exact counters do not show."""
    unshown = case.context.exact_flat or case.context.in_child
    return case.resource.name == RESIDENT and (unshown or not case.budget.judges_all_growth)


def _judge_extrapolation(case: _Case, over: int, level: int) -> Verdict:
    there = case.level + case.grown.slope * max(0, over - case.n)
    reason = f"{case.amount(there)} after {over:,} iterations at {case.rate(case.grown.slope)}"
    if there <= level:
        return case.say("ok", reason, floor=_compute_floor(case))
    # The kind is `predicted`, because the test has not run that far.
    return case.say("over_budget", f"{reason}, {case.amount(level)} allowed", kind="predicted")


def _check_level(case: _Case) -> Verdict | None:
    """Question 2 of the module: the level is exceeded, and the counter has settled."""
    allowed = case.budget.level
    # A count that other processes vary by more, such as with what is on its way from them, was as
    # high at the start.
    slack = case.wander if case.profile is _RELEASED_ELSEWHERE else case.resource.slack
    if allowed is None or case.level <= allowed + slack:
        return None
    enough = (_RELEASED_ELSEWHERE if case.profile is _RELEASED_ELSEWHERE else SCARCE).clean
    settled = case.grown.state == "flat" and case.n >= min(enough, case.context.effort.usual)
    if not settled and not case.context.final:
        return None
    if case.level - allowed <= case.noise and not case.resource.scarce:
        reason = f"{case.amount(case.level)} above the start, {case.amount(allowed)} allowed"
        advice = "set a level above the noise, or bound growth only"
        return case.say(
            "inconclusive", f"{reason}; the noise of this run is {case.amount(case.noise)}", advice
        )
    mark, stays = f"{case.series.resource}_budget", _spell(case, case.level)
    advice = f"if it is meant to stay: {mark}({stays}), or {mark}() to bound growth only"
    if case.grown.state != "flat":
        advice = "more iterations would show whether it continues: --leakcheck-iterations"
    return case.say(
        "over_budget", f"{_describe_shape(case)}, {case.amount(allowed)} allowed", advice
    )


def _spell(case: _Case, level: int) -> str:
    """Return a level as a mark takes it."""
    return str(level) if case.resource.unit == "count" or not level else f'"{case.amount(level)}"'


def _describe_shape(case: _Case) -> str:
    x, rises = case.series.readings, case.series.rises
    if case.resource.scarce and len(rises) == 1 and x[-1] == max(x):
        return f"one-off +{case.amount(case.level)} at iteration {next(iter(rises))}"
    return f"{'settles' if case.grown.state == 'flat' else 'still rising,'} at +{case.amount(case.level)}"


def _check_unclosed(case: _Case) -> Verdict | None:
    """Question 3: the resource is released, but only by the garbage collector."""
    if case.collected.state != "growing" or case.budget.unclosed == "allow":
        return None
    return _say_unclosed(case, case.collected.slope, "the garbage collector")


def _say_unclosed(case: _Case, slope: float, collector: str) -> Verdict:
    much = case.amount(slope)
    if case.resource.unit == "count":
        things = case.resource.plural
        much = f"1 {things.removesuffix('s')}" if slope == 1 else f"{slope:.3g} {things}"
    reason = f"{much} per iteration released by {collector} only"
    advice = "close them when done: the collector runs late, or never if it is disabled"
    if case.resource.unit == "bytes" and case.budget.level is not None:
        mark = f'{case.series.resource}_budget({_spell(case, case.budget.level)}, unclosed="allow")'
        advice = f"break the cycle: the collector runs late, or never if it is disabled. If a library makes it: {mark}"
    return case.say("unclosed", reason, advice, slope=slope)


def _check_settled(case: _Case) -> Verdict | None:
    awaits_all = case.context.effort.iterations and not case.context.final
    if awaits_all or case.n < min(case.profile.clean, case.context.effort.usual):
        return None
    x = case.series.readings
    below_resolution = (
        case.grown.state == "undecided" and abs(x[-1] - x[len(x) // 2]) <= case.resource.resolution
    )
    if case.grown.state != "flat" and not (case.context.final and below_resolution):
        return None
    if case.collected.state == "undecided" and any(case.series.released) and not case.context.final:
        return None
    note = _describe_shape(case) if case.level > 0 and case.resource.scarce else ""
    if case.budget.level is not None and case.level > case.budget.level:
        level, slack = case.amount(case.level), case.amount(case.resource.slack)
        note = f"{level} above the start; up to {slack} over the level is attributed to the interpreter"
        if case.profile is _RELEASED_ELSEWHERE:
            note = (
                f"{level} above the start; varies by {case.amount(case.wander)} between iterations"
            )
    return case.say("ok", note, floor=_compute_floor(case))


def _explain_undecided(case: _Case) -> Verdict | None:
    """Explain why there is no decision; None as long as more iterations may lead to one."""
    grown, n = case.grown, case.n
    enough = case.context.final or (
        n >= min(RETAINED.horizon, case.context.effort.usual) and decays(grown)
    )
    if _is_kept_by_allocator(case) and grown.state == "growing" and enough:
        reason = f"{case.rate(grown.slope)} over {n} iterations"
        if case.context.in_child:
            return case.say(
                "inconclusive", f"{reason}: it may be held by the allocator of the child"
            )
        return case.say(
            "inconclusive",
            f"held by the allocator: {reason}, while the exact memory counters do not grow",
        )
    if not case.context.final:
        return None
    if case.hint.text:
        reason = case.hint.text
    elif grown.state == "growing" and case.is_within_level:
        reason = f"grew {case.rate(grown.slope)} over {n} iterations, within the level of {case.budget.level}"
    elif grown.state == "growing":
        reason = f"grew {case.rate(grown.slope)} over {n} iterations; a cache may take up to {case.horizon} to fill"
    elif n < case.profile.clean:
        reason = f"{n} iterations, {case.profile.clean} needed"
        if case.level > 0:
            reason += f"; +{case.amount(case.level)} so far"
    elif 0 < grown.slope < grown.earlier / 2:
        rates = f"{case.rate(grown.earlier)}, then {case.rate(grown.slope)}"
        reason = f"still growing, ever more slowly: {rates}"
    else:
        moves = (
            f"varies by {case.amount(case.wander)} between iterations"
            if case.wander
            else "rises unevenly"
        )
        reason = f"{moves}, {case.rate(grown.slope)} overall"
    advice = "a child's garbage collector may release them: disable it there, by gc.disable(); otherwise, "
    more = advice * (case.profile is _RELEASED_ELSEWHERE) + _advise_more(case)
    return case.say(
        "inconclusive", reason, "; ".join(filter(None, (more, _advise_allowance(case))))
    )


def _advise_allowance(case: _Case) -> str:
    """Return how to allow slow growth by a library, which never becomes ``ok``; empty if fast."""
    name, budget, slope = case.series.resource, case.budget, case.grown.slope
    grows = case.grown.state == "growing" and case.resource.unit == "bytes" and budget.over is None
    if (
        not grows
        or budget.level is None
        or budget.per_iteration
        or slope * _FAR_ITERATIONS > budget.level
    ):
        return ""
    # A multiple, because such growth is uneven.
    amounts = case.amount(budget.level), case.amount(1 << ceil(4 * slope).bit_length())
    return 'if a library retains it: {}_budget("{}", per_iteration="{}")'.format(name, *amounts)


def _advise_more(case: _Case) -> str:
    needed = case.profile.clean if case.n < case.profile.clean else max(2 * case.n, case.horizon)
    if case.is_within_level and case.grown.state == "growing":
        needed = (
            ceil(max(case.n, _LEVEL_MARGIN * (case.budget.level or 0) / case.grown.slope))
            + FIRST_LOOK
        )
    seconds = case.context.seconds
    if not seconds and case.context.effort.in_script:
        return f"about {needed} iterations would decide it: iterations=, max_time="
    if not seconds:
        return f"about {needed} iterations would decide it: --leakcheck-iterations, --leakcheck-max-time"
    setting = case.context.effort.advise_time(_TIME_MARGIN * (needed + 3) * seconds)
    return f"an iteration took {seconds:.2g} s: allow time for about {needed}, {setting}"


def _compute_floor(case: _Case) -> float | None:
    if not case.budget.judges_all_growth:
        # Growth up to the idle memory would be in doubt, not red.
        return None
    quiet = case.grown.quiet if case.profile is SCARCE else None
    floor = detection_floor(
        case.series.readings, case.resource, case.tolerance, case.profile.leak, quiet
    )
    return floor * _ALLOCATOR_MARGIN if floor is not None and case.resource.name == HEAP else floor
