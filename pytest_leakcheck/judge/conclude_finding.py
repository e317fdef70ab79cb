"""Turn a `Result` into a `Finding`: the verdict on a whole test."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_leakcheck.baseline.known_leaks import KnownLeaks
from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.judge.not_judged import stopped_early
from pytest_leakcheck.judge.result import Policy, Result
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import Finding, Seen
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.scaling_points import Scaled
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.model.verdict import RED, WORST_FIRST, Colour, Verdict

if TYPE_CHECKING:
    from pytest_leakcheck.baseline.library_leaks import LibraryLeak


def conclude(result: Result, policy: Policy) -> Finding:
    """Judge a whole test by the verdicts on its resources; one stopped before its first verdict is ``inconclusive``."""
    verdicts = result.verdicts
    if not verdicts:
        recording = result.recording
        verdicts = (stopped_early(result.plan, recording.seconds, start_read=bool(recording.series)),)
    out_of_time = _find_out_of_time(result, verdicts)
    verdicts = tuple(one for one in verdicts if one.resource not in out_of_time)
    culprit, third_party = result.culprit, ""
    if policy.blame and not _is_suspect(culprit, policy.blame):
        third_party = f"no suspect frame belongs to {', '.join(policy.blame)}"
    verdicts = _colour_worst_first(verdicts, policy, spared=RED if third_party else ())
    worst, judged = verdicts[0], {verdict.resource for verdict in verdicts}
    finding = Finding(
        test=result.plan.test,
        verdicts=verdicts,
        budgets={budget.resource: str(budget) for budget in result.plan.budgets},
        seen=_list_unjudged_growth(result.recording, judged),
        held=result.held,
        recording=result.recording,
        reasons={budget.resource: budget.reason for budget in result.plan.budgets if budget.reason},
        culprit=culprit if culprit is not None and culprit.resource == worst.resource else None,
        third_party=third_party if worst.outcome in RED else "",
        out_of_time=out_of_time,
    )
    return _account_for_known(finding, policy)


def may_be_known(verdict: Verdict) -> bool:
    """Return whether the cause may be a known leak; a budget in the code is a contract, which no file takes back."""
    return verdict.outcome in ("leak", "unclosed") and not verdict.explicit


def _account_for_known(finding: Finding, policy: Policy) -> Finding:
    """Make a red finding on a known leak yellow; one that is red nevertheless says why."""
    worst, *others = finding.verdicts
    # The colour of a finding is that of its first verdict: a second red one, such as an explicit budget whose resource
    # cannot be read, would be hidden.
    if worst.colour != "red" or not may_be_known(worst) or any(one.colour == "red" for one in others):
        return finding
    if policy.library is not None and (leak := _find_library_leak(finding, policy.library)):
        yellow = (replace(worst, colour="yellow"), *others)
        return replace(finding, verdicts=yellow, third_party=f"known: {leak}")
    if policy.known is None:
        return finding
    return _account_for_baseline(finding, policy.known)


def _find_library_leak(finding: Finding, lines: tuple[str, ...]) -> LibraryLeak | None:
    # Imported only here: sessions without a leak do not need it.
    from pytest_leakcheck.baseline.library_leaks import find_library_leak

    return find_library_leak(finding, lines)


def _account_for_baseline(finding: Finding, known: KnownLeaks) -> Finding:
    """Make a red finding yellow if the file of known leaks lists it, or is being written."""
    worst, *others = finding.verdicts
    match = known.match(finding)
    if known.updating or match.state == "known":
        entry = match.leak.finding if match.leak is not None else finding.fingerprint
        return replace(finding, verdicts=(replace(worst, colour="yellow"), *others), known=entry)
    if match.leak is None:
        return finding
    unit = worst.traits.unit
    was, now = format_rate(match.leak.rate, unit), format_rate(worst.slope, unit)
    why = (
        f"known leak: was {was}, is {now}" if match.state == "grown" else f"known leak: expired on {match.leak.expires}"
    )
    return replace(finding, verdicts=(worst.adding(why), *others))


def conclude_sizes(  # noqa: PLR0913, PLR0917 - the results, the budgets and the policy
    recording: Recording,
    budgets: Mapping[str, str],
    judged: Sequence[Verdict],
    scaled: Scaled,
    policy: Policy,
    reason: str = "",
    culprits: Sequence[Culprit] = (),
) -> Finding:
    """Judge a test that was run at each size of an axis, by at least one verdict and at most one culprit per resource.

    `recording` is that of the whole test; `scaled` has those of its runs. The policy's `fail_on` and `missing` count.
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
        culprit=next((one for one in culprits if one.resource == worst.resource and worst.outcome in RED), None),
        scaled=scaled,
    )


def _find_out_of_time(result: Result, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    """Return what was undecided when a slow unmarked test ran out of time; it is judged on countable resources."""
    if not result.plan.screen or result.recording.stopped != "time":
        return ()
    undecided = [one.resource for one in verdicts if one.outcome == "inconclusive"]
    if any(find_resource(name).scarce for name in undecided):
        return ()
    return tuple(undecided)


def _colour_worst_first(
    verdicts: Iterable[Verdict], policy: Policy, spared: Container[str] = ()
) -> tuple[Verdict, ...]:
    """Return the verdicts (at least one) with colours, the worst first; outcomes in `spared` are yellow at most."""
    coloured = [replace(one, colour=_choose_colour(one, policy, spared)) for one in verdicts]
    order = ("red", "yellow", "green")
    # Of equal outcomes, one whose resource has grown says more.
    worst = min(
        coloured,
        key=lambda one: (
            order.index(one.colour or "green"),
            WORST_FIRST.index(one.outcome),
            one.slope <= 0 and one.level <= 0,
        ),
    )
    return worst, *(one for one in coloured if one is not worst)


def _choose_colour(verdict: Verdict, policy: Policy, spared: Container[str]) -> Colour:
    if verdict.outcome == "ok":
        return "green"
    if verdict.outcome == "unavailable":
        return "red" if policy.missing == "fail" and verdict.explicit and policy.fail_on else "yellow"
    if verdict.tolerated or (verdict.outcome == "inconclusive" and not verdict.explicit):
        return "yellow"
    return "red" if verdict.outcome in policy.fail_on and verdict.outcome not in spared else "yellow"


def _is_suspect(culprit: Culprit | None, packages: tuple[str, ...]) -> bool:
    from pytest_leakcheck.model.culprit import touches

    return touches(culprit.frames if culprit else (), packages)


def _list_unjudged_growth(recording: Recording, judged: set[str]) -> tuple[Seen, ...]:
    found = []
    for series in recording.series:
        if series.resource in judged or series.iterations < 2:
            continue
        resource = series.traits
        grown = growth(series.readings, resource.tolerance, exact=resource.scarce)
        level = series.readings[-1] - series.readings[0]
        # Undecided growth is stated of exact counters alone: one with noise may just end at its highest level.
        has_grown = grown.state == "growing" or (resource.scarce and grown.state == "undecided" and grown.slope > 0)
        if has_grown and level > resource.slack:
            found.append(Seen(series.resource, grown.slope, level))
    return tuple(found)
