"""A series and its budget in, a `Verdict` out. Pure: every case below is tested with literal numbers.

The order of questions, and why:

0. Do other processes rise, and fall now and then? Their garbage collectors are not watched, so nothing else can be said.
1. Does it grow? (`judge.growth`) A statistical crossing is a suspicion; a bounded owner that is still filling explains it.
   Scarce exact counters need no horizon. For memory and gc objects the growth must hold for a horizon of iterations,
   since caches fill, unless it would reach the limit of the process within a run: then it is called at once.
2. Is the level exceeded? That needs no horizon, only that the counter has settled.
3. Was it given back by the collector alone? The same rule, on the running sum of what the collector released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.detection_floor import detection_floor
from pytest_leakcheck.judge.growth import Growth, decays, growth, is_steady, let_go
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import Resource, find_resource
from pytest_leakcheck.model.units import format_amount, format_rate
from pytest_leakcheck.model.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Profile:
    """How long a kind of counter is looked at.

    Attributes:
        clean: The least number of iterations behind an ``ok``. Thirteen quiet ones exclude a leak at every 3rd
            iteration at 99 %; memory's fifty exclude one at every 11th.
        leak: Growth may be called at the first look (`growth.looks`) at or after so many iterations.
        horizon: Growth is called a leak only after so many iterations (caches of up to about this size may fill).
    """

    clean: int
    leak: int
    horizon: int


SCARCE: Final = Profile(clean=13, leak=16, horizon=0)
RETAINED: Final = Profile(clean=50, leak=16, horizon=200)
# Scarce things that fall in other processes: whether nobody closed them shows later (`_let_go`).
_LET_GO: Final = Profile(clean=50, leak=50, horizon=0)
# A heap without threads' caches of freed blocks wanders by less, so steady growth is told after half the horizon.
_QUIET_TOLERANCE: Final = 8.0
_QUIET_HORIZON: Final = 100
# What is evicted may stay for another iteration, and an entry may have parts that do not show: of the 4 objects of a text
# file the collector is shown 3.
_WITH_UNSEEN: Final = 1.5


@dataclass(frozen=True, slots=True)
class Context:
    """What the verdict on one resource depends on beside its own series.

    Attributes:
        final: No further iteration will follow, so a verdict must be given.
        run_length: Iterations of the run that the test stands for (``leakcheck_run``).
        headroom: How far the resource can still grow before the process dies, in its unit; None when unknown.
        horizon: The most iterations that this test will be given; a shorter effort shortens the horizon with it.
        explained: An innocent explanation of the growth, as a text for the report: an owner with a readable bound that
            filled up meanwhile, say.
        explained_rate: So much growth per iteration is explained, in the unit of the resource; the rest is judged.
        carried: The level that the resource had reached when the series began again, over its first start.
        background: What it gained while the test rested, as a text: something else makes it grow.
        exact_flat: For resident memory: the exact memory counters did not grow.
        elsewhere: Other processes have a part in it, whose collectors are not watched.
        quiet_heap: The allocator counts a block as free as soon as it is freed.
        slack: A level that is exceeded by no more than this, in its unit, is not held against the test, beside what is the
            resource's own (`Resource.slack`): other threads, which were there at the start, hold more or less by turns.
    """

    final: bool = False
    run_length: int = 10_000
    headroom: int | None = None
    horizon: int = RETAINED.horizon
    explained: str = ""
    explained_rate: float = 0.0
    carried: int = 0
    background: str = ""
    exact_flat: bool = False
    elsewhere: bool = False
    quiet_heap: bool = False
    slack: int = 0


@dataclass(frozen=True, slots=True)
class _Case:
    """One series under judgement: the numbers that the questions share."""

    series: Series
    budget: Budget
    context: Context
    resource: Resource
    profile: Profile
    tolerance: float
    grown: Growth
    collected: Growth
    level: int
    wander: int

    @property
    def noise(self) -> int:
        """Levels closer than this cannot be told apart in this run."""
        return max(self.resource.resolution, self.wander)

    @property
    def slack(self) -> int:
        """What a level may be exceeded by."""
        return self.resource.slack + self.context.slack

    @property
    def n(self) -> int:
        return self.series.iterations

    @property
    def horizon(self) -> int:
        return min(self.profile.horizon, self.context.horizon)

    def say(self, outcome: Outcome, reason: str, advice: str = "", **changes: Any) -> Verdict:
        values = {
            "slope": self.grown.slope,
            "level": self.level,
            "iterations": self.n,
            "kind": self.series.kind,
        } | changes
        warned = outcome == "unclosed" and self.budget.unclosed == "warn"
        explicit = self.budget.explicit and not warned
        return Verdict(self.series.resource, outcome, reason=reason, advice=advice, explicit=explicit, **values)

    def amount(self, value: float) -> str:
        return format_amount(value, self.resource.unit)

    def rate(self, value: float) -> str:
        return format_rate(value, self.resource.unit)


def judge(series: Series, budget: Budget, context: Context | None = None) -> Verdict | None:
    """Judge one resource.

    Args:
        series: At least two readings.
        budget: What is allowed.
        context: What else is known; by default a run that may go on.

    Returns:
        A verdict, or None when more iterations are needed. With ``context.final`` never None.
    """
    case = _examine(series, budget, context or Context())
    return _let_go(case) or _growing(case) or _standing(case) or _unclosed(case) or _settled(case) or _undecided(case)


def judge_once(series: Series, budget: Budget) -> Verdict:
    """Judge a block that ran once, by the difference of its two readings and the level of the budget."""
    case = _examine(series, budget, Context(final=True))
    level, allowed, released = series.readings[-1] - series.readings[0], budget.level or 0, sum(series.released)
    if level > allowed + case.slack:
        noisy = not case.resource.scarce and level - allowed <= case.noise
        reason = f"+{case.amount(level)} after the block, {case.amount(allowed)} allowed"
        return case.say("inconclusive" if noisy else "over_budget", reason, level=level, slope=0.0)
    if released and budget.unclosed != "allow":
        much = f"{released} {case.resource.plural}" if case.resource.unit == "count" else case.amount(released)
        reason = f"{much} given back by the garbage collector alone"
        return case.say("unclosed", reason, slope=float(released), level=level)
    return case.say("ok", "", level=level, slope=0.0)


def _examine(series: Series, budget: Budget, context: Context) -> _Case:
    resource = find_resource(series.resource)
    quiet = context.quiet_heap and resource.thread_caches
    x = series.readings
    late = x[len(x) // 2 :]
    wander = max(top - value for top, value in zip(accumulate(late, max), late, strict=True))
    profile = (_LET_GO if context.elsewhere and wander else SCARCE) if resource.scarce else RETAINED
    tolerance = (_QUIET_TOLERANCE if quiet else resource.tolerance) + budget.per_iteration
    tolerance += context.explained_rate * _WITH_UNSEEN
    grown = growth(series.readings, tolerance, profile.leak, exact=resource.scarce)
    if context.explained_rate and grown.state == "growing":
        grown = replace(grown, slope=grown.slope - context.explained_rate)
    collected = growth(tuple(accumulate(series.released, initial=0)), 0.0, SCARCE.leak, exact=True)
    # Settled: the least of the later half of the second half, so that a spike or a falling tail is not held against it.
    level = min(late[len(late) // 2 :]) - x[0] + context.carried
    return _Case(series, budget, context, resource, profile, tolerance, grown, collected, level, wander)


def _let_go(case: _Case) -> Verdict | None:
    """Other processes rise steadily, and fall now and then: no level of theirs means anything, and nobody saw why they fell."""
    teeth = let_go(case.series.readings) if case.context.elsewhere and case.resource.scarce else None
    if teeth is None or case.budget.unclosed == "allow" or not (case.n >= _LET_GO.clean or case.context.final):
        return None
    rise, fall = teeth
    highest = max(case.series.readings) - case.series.readings[0]
    within = case.budget.level is not None and highest <= case.budget.level
    if within or (case.grown.state == "growing" and case.grown.slope > rise / 2):
        return None
    reason = f"{case.rate(rise)}, and now and then {fall:.3g} are let go at once, by a child or its garbage collector"
    advice = "close them when done; with the collectors of the children switched off it would be seen which it is"
    return case.say("inconclusive", reason, advice, slope=float(rise))


def _growing(case: _Case) -> Verdict | None:
    """Question 1: growth that is proved, that nothing bounded explains, and that has held for long enough."""
    if case.grown.state != "growing" or case.context.explained or _kept_by_allocator(case):
        return None
    if case.context.background:
        reason = f"grows also while the test rests, {case.context.background}: something that was started before it does that"
        return case.say(
            "inconclusive", reason, "end what other tests start, or run this one alone: --leakcheck-isolate"
        )
    held = _has_held(case)
    if case.budget.over is not None and case.budget.level is not None:
        return _extrapolated(case, case.budget.over, case.budget.level) if held or case.context.final else None
    fatal = case.context.headroom is not None and case.grown.slope * case.context.run_length >= case.context.headroom
    if not held and not fatal:
        return None
    reason = f"{case.rate(case.grown.slope)} sustained over {case.n} iterations"
    if case.budget.per_iteration:
        reason += f", {case.rate(case.budget.per_iteration)} allowed"
    return case.say("leak", reason)


def _has_held(case: _Case) -> bool:
    quiet = case.context.quiet_heap and case.resource.thread_caches
    steady = quiet and is_steady(case.series.readings)
    if case.n < case.horizon:
        return steady and case.n >= _QUIET_HORIZON
    return steady or not (quiet and decays(case.grown))


def _kept_by_allocator(case: _Case) -> bool:
    return bool(case.resource.exact_counter) and case.context.exact_flat


def _extrapolated(case: _Case, over: int, level: int) -> Verdict:
    there = case.level + case.grown.slope * max(0, over - case.n)
    reason = f"{case.amount(there)} over {over:,} iterations at {case.rate(case.grown.slope)}"
    if there <= level:
        return case.say("ok", reason, floor=_floor(case))
    # Nobody has run that far.
    return case.say("over_budget", f"{reason}, {case.amount(level)} allowed", kind="predicted")


def _standing(case: _Case) -> Verdict | None:
    """Question 2: a level that is exceeded and has settled."""
    allowed = case.budget.level
    if allowed is None or case.level <= allowed + case.slack:
        return None
    enough = (_LET_GO if case.profile is _LET_GO else SCARCE).clean
    settled = case.grown.state == "flat" and case.n >= min(enough, case.context.horizon)
    if not settled and not case.context.final:
        return None
    if case.level - allowed <= case.noise and not case.resource.scarce:
        reason = f"{case.amount(case.level)} above the start, {case.amount(allowed)} allowed"
        advice = "give the budget a level above the noise, or bound growth only"
        return case.say("inconclusive", f"{reason}; the noise of this run is {case.amount(case.noise)}", advice)
    name, stays = case.series.resource, _literal(case)
    advice = f"if it is meant to stay: {name}_budget({stays}), or {name}_budget() to bound growth only"
    if case.grown.state != "flat":
        advice = "more iterations would tell whether it goes on: --leakcheck-iterations"
    return case.say("over_budget", f"{_shape(case)}, {case.amount(allowed)} allowed", advice)


def _literal(case: _Case) -> str:
    return str(case.level) if case.resource.unit == "count" else f'"{case.amount(case.level)}"'


def _shape(case: _Case) -> str:
    x = case.series.readings
    rises = [i for i in range(1, len(x)) if x[i] > x[i - 1]]
    if case.resource.scarce and len(rises) == 1 and x[-1] == max(x):
        return f"one-off +{case.amount(case.level)} at iteration {rises[0]}"
    return f"{'settles' if case.grown.state == 'flat' else 'stands, still rising,'} at +{case.amount(case.level)}"


def _unclosed(case: _Case) -> Verdict | None:
    """Question 3: given back, but by the collector alone."""
    if case.collected.state != "growing" or case.budget.unclosed == "allow":
        return None
    slope = case.collected.slope
    much = f"{slope:.3g} {case.resource.plural}" if case.resource.unit == "count" else case.amount(slope)
    reason = f"{much} per iteration given back by the garbage collector alone"
    advice = "close them when done: the collector runs late, and not at all where it is switched off"
    return case.say("unclosed", reason, advice, slope=slope)


def _settled(case: _Case) -> Verdict | None:
    if case.n < min(case.profile.clean, case.context.horizon):
        return None
    if case.grown.state != "flat" and not (case.context.final and _below_resolution(case)):
        return None
    if case.collected.state == "undecided" and any(case.series.released) and not case.context.final:
        return None
    note = _shape(case) if case.level > 0 and case.resource.scarce else ""
    if case.budget.level is not None and case.level > case.budget.level:
        whose = "other threads'" if case.context.slack else "the interpreter's own"
        note = f"{case.amount(case.level)} above the start; up to {case.amount(case.slack)} over a level is {whose}"
    return case.say("ok", note, floor=_floor(case))


def _below_resolution(case: _Case) -> bool:
    """A step or two that the counter cannot tell from none, and no proof of growth."""
    x = case.series.readings
    return case.grown.state == "undecided" and abs(x[-1] - x[len(x) // 2]) <= case.resource.resolution


def _undecided(case: _Case) -> Verdict | None:
    """No further iteration will follow: say what is missing."""
    grown, n = case.grown, case.n
    if _kept_by_allocator(case) and grown.state == "growing" and (case.context.final or n >= case.horizon):
        reason = f"{case.rate(grown.slope)} over {n} iterations, while the exact memory counters stand still"
        return case.say("inconclusive", f"kept by the allocator: {reason}")
    if not case.context.final:
        return None
    if case.context.explained:
        reason = case.context.explained
    elif grown.state == "growing":
        reason = f"grew {case.rate(grown.slope)} over {n} iterations; a cache may fill for {case.horizon}"
    elif n < case.profile.clean:
        reason = f"{n} iterations, {case.profile.clean} needed"
    elif 0 < grown.slope < grown.earlier / 2:
        decays = f"{case.rate(grown.earlier)}, then {case.rate(grown.slope)}"
        reason = f"still growing but decaying: {decays}; about {n} more iterations would tell"
    else:
        moves = f"moves by {case.amount(case.wander)} between iterations" if case.wander else "rises unevenly"
        reason = f"{moves}, {case.rate(grown.slope)} on the whole"
    return case.say("inconclusive", reason, "more iterations would tell: --leakcheck-iterations, --leakcheck-max-time")


def _floor(case: _Case) -> float | None:
    return detection_floor(case.series.readings, case.resource, case.tolerance, case.profile.leak, case.grown.quiet)
