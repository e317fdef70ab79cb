"""Turn a `Result`, which a repetition found, into a `Finding`: the verdict on a whole test.

The verdicts (``unavailable`` or ``inconclusive``) on resources that could not be judged are made
here, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.model.culprit import Culprit, Fault, Remainder, short_file, touches
from pytest_leakcheck.model.finding import (
    RED,
    WORST_FIRST,
    Colour,
    Finding,
    UnjudgedGrowth,
    Verdict,
)
from pytest_leakcheck.model.recording import Recording, Scaled
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES, find_resource
from pytest_leakcheck.model.units import format_amount, format_count, format_rate

if TYPE_CHECKING:
    from pytest_leakcheck.baseline.known_leaks import KnownLeaks


@dataclass(frozen=True, slots=True)
class Result:
    """What the repetition of one test found.

    There is one verdict per judged resource, in order; none follows a red one. `held` are the
    survivors by resource (for ``unclosed``: what the collector released), if they can be
    identified.
    """

    plan: Plan
    recording: Recording
    verdicts: tuple[Verdict, ...]
    held: Mapping[str, tuple[Remainder, ...]]
    culprit: Culprit | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What decides whether an outcome is red: the session's settings and its known leaks.

    Attributes:
        fail_on: Outcomes that are red; ``inconclusive`` only under an explicit budget. If empty,
            nothing is red.
        missing: With ``"fail"``, a resource that has an explicit budget but cannot be read is red.
        blame: Packages. A ``leak``, ``over_budget`` or ``unclosed`` is red only if a suspect line
            is in one of them. If empty, the line may be anywhere.
        library: The lines of ``leakcheck_library``; None if known leaks of installed packages are
            red as well.
    """

    fail_on: tuple[str, ...]
    missing: str = "skip"
    blame: tuple[str, ...] = ()
    known: KnownLeaks | None = None
    library: tuple[str, ...] | None = None

    @classmethod
    def of(cls, settings: Settings, known: KnownLeaks | None) -> Policy:
        library = settings.library if settings.library_leaks else None
        return cls(settings.fail_on, settings.missing, settings.blame, known, library)


def unavailable(resource: str, why: str, *, peak: bool = False) -> Verdict:
    """Report that a resource cannot be read here; `peak`: the verdict is on the peak of one run."""
    return Verdict(resource, "unavailable", reason=why, peak=peak)


def _undecided(budget: Budget, reason: str, advice: str = "", **figures: Any) -> Verdict:
    return Verdict(
        budget.resource,
        "inconclusive",
        reason=reason,
        advice=advice,
        explicit=budget.explicit,
        **figures,
    )


def missing_verdicts(plan: Plan, missing: Mapping[str, Exception]) -> tuple[Verdict, ...]:
    """Return an ``unavailable`` verdict for each explicit budget whose resource failed to open."""
    return tuple(
        unavailable(budget.resource, str(missing[budget.resource]))
        for budget in plan.budgets
        if budget.resource in missing and budget.explicit
    )


def without_ceiling(verdicts: Iterable[Verdict], missing: Mapping[str, str]) -> tuple[Verdict, ...]:
    """Replace verdicts under limits that cannot be set by ``unavailable`` ones; red ones stand."""
    others = (one for one in verdicts if one.resource not in missing or one.outcome in RED)
    return *others, *(unavailable(name, why) for name, why in missing.items())


def no_time_left(
    budgets: Iterable[Budget], effort: Effort, seconds: float, *, restarted: bool
) -> tuple[Verdict, ...]:
    """Return an ``inconclusive`` verdict per budget: no iteration followed the start level."""
    reason = "no time was left after warm-up"
    if restarted:
        reason = "the series was restarted (late release, frozen garbage or full cache); no time was left after that"
    return tuple(
        _undecided(budget, reason, _advise_more_time(effort, seconds)) for budget in budgets
    )


def no_room_left(budgets: Sequence[Budget], resource: str, used: str) -> Verdict:
    """Return the ``inconclusive`` verdict: more iterations would take too much of the machine."""
    budget = next((one for one in budgets if one.resource == resource), budgets[0])
    reason = f"stopped at {used}: more iterations would take too much of it"
    return _undecided(
        budget,
        reason,
        "if each run keeps as much, the test leaks: release it, or run it where there is more",
    )


def stopped_early(plan: Plan, recording: Recording) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that was stopped before its first verdict."""
    names = [budget.resource for budget in plan.budgets] or [*RESOURCES]
    missed = "a verdict" if recording.series else "the first reading"
    reason = f"stopped after {recording.seconds:.1f} s, before {missed}"
    return Verdict(
        names[0],
        "inconclusive",
        reason=reason,
        advice=_advise_more_time(plan.effort, recording.seconds),
    )


def does_not_repeat(plan: Plan, iteration: int, ended_with: str) -> Verdict:
    """Return an ``inconclusive`` verdict: the test passed, and later failed, but not by a leak."""
    reason = f"not repeatable: iteration {iteration} ended with {ended_with}"
    advice = "make the test clean up after itself"
    return _undecided(plan.budgets[0], reason, advice, iterations=iteration - 1)


def blocked(plan: Plan, iteration: int, where: str) -> Verdict:
    """Return an ``inconclusive`` verdict: the test passed, then blocked; `where` names the call."""
    reason = f"not repeatable: iteration {iteration} blocked {where}"
    advice = (
        "look for what it waits for: an earlier iteration may have taken it and not given it back"
    )
    return _undecided(plan.budgets[0], reason, advice, iterations=iteration - 1)


def ends_differently(plan: Plan, iteration: int, how: str) -> Verdict:
    """Return an ``inconclusive`` verdict on a failing path.

    `how` says in what this iteration differs from the first one.
    """
    reason = f"not judged: iteration {iteration} {how}"
    return replace(_undecided(plan.budgets[0], reason, iterations=iteration - 1), explicit=False)


def _left_to_test(verdict: Verdict, fault: Fault, culprit: Culprit | None) -> Verdict:
    """Make ``inconclusive`` a leak of what the test was given earlier and kept when it failed."""
    earlier = fault.find_earlier(culprit) if verdict.outcome in RED else None
    if earlier is None or fault.entry is None:
        return verdict
    file = short_file(earlier.file)
    reason = f"created at {file}:{earlier.line}, and {earlier.function}() fails at line {fault.entry.line} without releasing it"
    advice = "release it there in a with statement or in a fixture, so that only what the program leaves is judged"
    return replace(verdict, outcome="inconclusive", explicit=False, reason=reason, advice=advice)


def fails_alone(plan: Plan, ended_with: str) -> Verdict:
    """Return an ``inconclusive`` verdict: the test passed in the session, but not in isolation."""
    reason = f"not repeatable: alone in a separate process, it ended with {ended_with}"
    advice = "make the test independent of those before it, or measure it without isolate"
    return _undecided(plan.budgets[0], reason, advice)


def did_not_recur(verdict: Verdict) -> Verdict:
    """Return ``inconclusive`` in place of a leak that did not recur in the search for its cause."""
    reason = (
        f"{verdict.reason}, but it did not recur while traced: it depends on time, or has ended"
    )
    advice = "more time would decide it: --leakcheck-max-time"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=advice)


def judged_again(verdict: Verdict, instead: Verdict) -> Verdict:
    """Return the verdict on the series after a withdrawal, or `instead` of an undecided one."""
    if verdict.outcome == "ok":
        return verdict.adding(f"grew at first, and stopped after {instead.iterations} iterations")
    return instead if verdict.outcome == "inconclusive" else verdict


def recalled(verdict: Verdict, test: str) -> Verdict:
    """Add to a leak that its cause is that of another test, and was not searched for."""
    return verdict.adding(f"its cause is that of {test}, and was only confirmed here")


def measurement_failed(budget: Budget, reason: str) -> Verdict:
    """Return an ``inconclusive`` verdict: an error of the plugin prevented the measurement."""
    return _undecided(
        budget,
        reason,
        "if the test does not replace or close what the plugin uses, please report this",
    )


def left_early(result: Result, step: int | None) -> Result:
    """Make the result of a loop left early, or never begun, ``inconclusive`` unless it is red."""
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    reason = (
        "the loop was never begun"
        if step is None
        else f"left in step {step}, by break, return or an exception"
    )
    advice = "let the loop run to its end: it ends as soon as the verdict is known"
    return replace(result, verdicts=(_undecided(result.plan.budgets[0], reason, advice),))


def interrupted(result: Result) -> Result:
    """Return the result of a test that Ctrl-C ended: ``inconclusive``, with the growth so far.

    Verdicts given before stay; after a red one, no other resource is judged. The others never fail
    the test.
    """
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    given = {verdict.resource for verdict in result.verdicts}
    open_ = [
        _so_far(budget, result) for budget in result.plan.budgets if budget.resource not in given
    ]
    open_.sort(key=lambda one: -one.slope / max(one.traits.tolerance, 1.0))
    if open_:
        count = open_[0].iterations
        when = f"after {format_count(count, 'iteration')}" if count else "before the first reading"
        grown = [one for one in open_ if one.slope > one.traits.tolerance]
        rates = [f"{one.resource} {format_rate(one.slope, one.traits.unit)}" for one in grown]
        so_far = f"so far {', '.join(rates)}" if rates else "no growth so far" if count else ""
        reason = "; ".join(filter(None, (f"interrupted {when}, not judged", so_far)))
        open_ = [replace(one, reason=reason) for one in open_]
    return replace(result, verdicts=(*result.verdicts, *open_))


def _so_far(budget: Budget, result: Result) -> Verdict:
    series = result.recording.find(budget.resource)
    count = series.iterations if series is not None else 0
    level = series.readings[-1] - series.readings[0] if series is not None and count else 0
    slope = level / max(1, count)
    return _undecided(
        budget, "", slope=slope, level=level, iterations=max(0, count), tolerated=True
    )


def sizes_interrupted(
    resources: Iterable[str], scaled: Scaled, size: int, sizes: int
) -> list[Verdict]:
    """Return an ``inconclusive`` verdict per resource: Ctrl-C ended the test at this size."""
    names = tuple(resources)
    peaks = []
    for point in scaled.points:
        read = [name for name in names if not point.why_not(name)]
        amounts = (
            format_amount(point.peak(name, "total"), find_resource(name).unit) for name in read
        )
        texts = (
            f"{name.removeprefix(GAUGE_PREFIX)} {amount}"
            for name, amount in zip(read, amounts, strict=True)
        )
        peaks.append(f"{scaled.axis}={point.size}: {', '.join(texts)}")
    done = f"{len(scaled.points)} of {format_count(sizes, 'size')}"
    reason = f"interrupted at {scaled.axis}={size}, after {done}, not judged"
    if peaks:
        reason += f"; peaks so far: {'; '.join(peaks)}"
    return [
        Verdict(name, "inconclusive", reason=reason, explicit=True, tolerated=True)
        for name in names
    ]


def process_interrupted(plan: Plan, iteration: int) -> Verdict:
    """Return an ``inconclusive`` verdict: Ctrl-C ended the process, and its readings are lost."""
    where = f"in iteration {iteration}" if iteration else "before the first iteration"
    reason = f"interrupted {where} in a separate process, whose readings are lost; not judged"
    return _undecided(plan.budgets[0], reason, iterations=max(0, iteration - 1), tolerated=True)


def process_lost(resource: str, iterations: int, reason: str, advice: str) -> Verdict:
    """Return an ``inconclusive`` verdict: the process ended before it reported a verdict."""
    return Verdict(resource, "inconclusive", iterations=iterations, reason=reason, advice=advice)


def _advise_more_time(effort: Effort, seconds: float) -> str:
    return f"allow about ten times as long: {effort.advise_time(10 * seconds)}"


def conclude(result: Result, policy: Policy) -> Finding:
    """Judge a whole test by the verdicts on its resources; ``inconclusive`` if it has none."""
    verdicts = result.verdicts or (stopped_early(result.plan, result.recording),)
    out_of_time = _find_out_of_time(result, verdicts)
    verdicts = tuple(one for one in verdicts if one.resource not in out_of_time)
    if (fault := result.plan.fault) is not None:
        verdicts = tuple(_left_to_test(one, fault, result.culprit) for one in verdicts)
    culprit, third_party = result.culprit, ""
    if policy.blame and not touches(culprit.frames if culprit else (), policy.blame):
        third_party = f"no suspect frame belongs to {', '.join(policy.blame)}"
    verdicts = _colour_worst_first(verdicts, policy, spared=RED if third_party else ())
    worst, judged = verdicts[0], {verdict.resource for verdict in verdicts}
    finding = Finding(
        test=result.plan.test,
        verdicts=verdicts,
        budgets={
            budget.resource: str(budget)
            for budget in result.plan.budgets
            # Most tests have no cluster, and reports of large suites have a line for each test.
            if budget.resource in judged or not budget.traits.of_cluster
        },
        seen=_list_unjudged_growth(result.recording, judged),
        held=result.held,
        recording=result.recording,
        reasons={budget.resource: budget.reason for budget in result.plan.budgets if budget.reason},
        culprit=culprit if culprit is not None and culprit.resource == worst.resource else None,
        third_party=third_party if worst.outcome in RED else "",
        out_of_time=out_of_time,
        fault=fault,
    )
    return _account_for_known(finding, policy)


def _account_for_known(finding: Finding, policy: Policy) -> Finding:
    """Make a red finding on a known leak yellow; one that stays red, or only warns, says why."""
    worst, *others = finding.verdicts
    # A budget in the code is a contract, which no file takes back.
    may_be_known = worst.outcome in ("leak", "unclosed") and not worst.explicit
    # The colour of a finding is that of its first verdict: a second red one, such as an explicit
    # budget whose resource cannot be read, would be hidden. An update lists each leak, also one
    # that fails no test under ``fail_on``.
    updating = policy.known is not None and policy.known.updating and not finding.third_party
    counts = worst.colour == "red" or updating
    if (
        not (counts or worst.outcome == "unclosed")
        or not may_be_known
        or any(one.colour == "red" for one in others)
    ):
        return finding
    yellow = (replace(worst, colour="yellow"), *others)
    if policy.library is not None:
        # Imported only here: sessions without a leak do not need it.
        from pytest_leakcheck.baseline.library_leaks import find_library_leak

        if leak := find_library_leak(finding, policy.library):
            return replace(finding, verdicts=yellow, third_party=f"known: {leak}")
    if policy.known is None or not counts:
        return finding
    match = policy.known.match(finding)
    if policy.known.updating or match.state == "known":
        entry = match.leak.finding if match.leak is not None else finding.fingerprint
        return replace(finding, verdicts=yellow, known=entry)
    if match.leak is None:
        return finding
    unit, name = (
        find_resource(match.leak.resource).unit,
        "" if match.leak.resource == worst.resource else f"{match.leak.resource} ",
    )
    was, now = format_rate(match.leak.rate, unit), format_rate(match.rate, unit)
    why = (
        f"{name}was {was}, is {now}"
        if match.state == "grown"
        else f"expired on {match.leak.expires}"
    )
    return replace(finding, verdicts=(worst.adding(f"known leak: {why}"), *others))


def conclude_sizes(  # noqa: PLR0913, PLR0917 - the results, the budgets and the policy
    recording: Recording,
    budgets: Mapping[str, str],
    judged: Sequence[Verdict],
    scaled: Scaled,
    policy: Policy,
    reason: str = "",
    culprits: Sequence[Culprit] = (),
) -> Finding:
    """Judge a test that was run at each size of an axis.

    There is at least one verdict, and at most one culprit per resource. `recording` is that of the
    whole test; `scaled` has those of its runs. The policy's `fail_on` and `missing` count.
    """
    verdicts = _colour_worst_first(judged, policy)
    worst = verdicts[0]
    return Finding(
        test=recording.test,
        verdicts=verdicts,
        budgets=budgets,
        seen=(),
        held={},
        recording=recording,
        reasons=dict.fromkeys(budgets, reason) if reason else {},
        culprit=next(
            (one for one in culprits if one.resource == worst.resource and worst.outcome in RED),
            None,
        ),
        scaled=scaled,
    )


def _find_out_of_time(result: Result, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Return what a slow unmarked test left undecided: only countable resources are judged."""
    if not result.plan.screen or result.recording.stopped != "time":
        return ()
    undecided = [one.resource for one in verdicts if one.outcome == "inconclusive"]
    if any(find_resource(name).scarce for name in undecided):
        return ()
    return tuple(undecided)


def _colour_worst_first(
    verdicts: Iterable[Verdict], policy: Policy, spared: Container[str] = ()
) -> tuple[Verdict, ...]:
    """Colour the verdicts (at least one), the worst first; those in `spared` are yellow at most."""
    coloured = [replace(one, colour=_choose_colour(one, policy, spared)) for one in verdicts]
    order = ("red", "yellow", "green")
    # Of equal outcomes, one whose resource has grown says more.
    worst = min(
        coloured,
        key=lambda verdict: (
            order.index(verdict.colour or "green"),
            WORST_FIRST.index(verdict.outcome),
            verdict.slope <= 0 and verdict.level <= 0,
        ),
    )
    return worst, *(one for one in coloured if one is not worst)


def _choose_colour(verdict: Verdict, policy: Policy, spared: Container[str]) -> Colour:
    if verdict.outcome == "ok":
        return "green"
    if verdict.outcome == "unavailable":
        return (
            "red" if policy.missing == "fail" and verdict.explicit and policy.fail_on else "yellow"
        )
    if verdict.tolerated or (verdict.outcome == "inconclusive" and not verdict.explicit):
        return "yellow"
    return (
        "red" if verdict.outcome in policy.fail_on and verdict.outcome not in spared else "yellow"
    )


def _list_unjudged_growth(recording: Recording, judged: set[str]) -> tuple[UnjudgedGrowth, ...]:
    found = []
    for series in recording.series:
        if series.resource in judged or series.iterations < 2:
            continue
        resource = series.traits
        grown = growth(series.readings, resource.tolerance, exact=resource.scarce)
        level = series.readings[-1] - series.readings[0]
        # Undecided growth is stated of exact counters alone: one with noise may just end at its
        # highest level.
        has_grown = grown.state == "growing" or (
            resource.scarce and grown.state == "undecided" and grown.slope > 0
        )
        if has_grown and level > resource.slack:
            found.append(UnjudgedGrowth(series.resource, grown.slope, level))
    return tuple(found)
