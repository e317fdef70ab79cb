"""Turn a `Result` into a `Finding`: the verdict on a whole test."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.judge.not_judged import stopped_early
from pytest_leakcheck.judge.result import RED, Result
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import Finding, Seen
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.scaling_points import Scaled
from pytest_leakcheck.model.verdict import WORST_FIRST, Colour, Verdict


def conclude(result: Result, fail_on: tuple[str, ...], missing: str = "skip", blame: tuple[str, ...] = ()) -> Finding:
    """Judge a whole test by the verdicts on its resources.

    Args:
        result: What the repetition found.
        fail_on: Outcomes that are red; ``unclosed`` and ``inconclusive`` only under an explicit budget.
        missing: With ``"fail"``, a resource that has an explicit budget but cannot be read is red.
        blame: Packages. A ``leak``, ``over_budget`` or ``unclosed`` is red only if a suspect line is in one of them. If
            empty, the line may be anywhere.

    Returns:
        The finding. A test that was stopped before its first verdict is ``inconclusive``.
    """
    verdicts = result.verdicts
    if not verdicts:
        recording = result.recording
        verdicts = (stopped_early(result.plan, recording.seconds, start_read=bool(recording.series)),)
    culprit, third_party = result.culprit, ""
    if blame and not _is_suspect(culprit, blame):
        third_party = f"no suspect frame belongs to {', '.join(blame)}"
    verdicts = _colour_worst_first(verdicts, fail_on, missing, spared=RED if third_party else ())
    worst, judged = verdicts[0], {verdict.resource for verdict in verdicts}
    return Finding(
        test=result.plan.test,
        verdicts=verdicts,
        budgets={budget.resource: str(budget) for budget in result.plan.budgets},
        seen=_list_unjudged_growth(result.recording, judged),
        held=result.held,
        recording=result.recording,
        reasons={budget.resource: budget.reason for budget in result.plan.budgets if budget.reason},
        culprit=culprit if culprit is not None and culprit.resource == worst.resource else None,
        third_party=third_party if worst.outcome in RED else "",
    )


def conclude_sizes(  # noqa: PLR0913, PLR0917 - the results, the budgets and the settings
    recording: Recording,
    budgets: Mapping[str, str],
    judged: Sequence[Verdict],
    scaled: Scaled,
    fail_on: tuple[str, ...],
    missing: str = "skip",
    reason: str = "",
    culprits: Sequence[Culprit] = (),
) -> Finding:
    """Judge a test that was run at each size of an axis.

    Args:
        recording: The recording of the whole test; those of its runs are in `scaled`.
        budgets: What was allowed, as text, by resource.
        judged: At least one verdict.
        scaled: The measured points, one per size.
        fail_on: As in `conclude`.
        missing: As in `conclude`.
        reason: The reason stated in the budget.
        culprits: What is known of the causes, at most one per resource.
    """
    verdicts = _colour_worst_first(judged, fail_on, missing)
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


def conclude_ended(interim: Finding, reason: str) -> Finding:
    """Complete the interim finding of a test whose process ended before it sent the final one.

    The outcome of the verdict stays the same; how the process ended is appended to its reason.

    Args:
        interim: The finding that the process sent before it continued the test.
        reason: How the process ended.
    """
    worst, *others = interim.verdicts
    return replace(interim, verdicts=(worst.adding(f"then {reason}"), *others))


def _colour_worst_first(
    verdicts: Iterable[Verdict], fail_on: tuple[str, ...], missing: str, spared: Container[str] = ()
) -> tuple[Verdict, ...]:
    """Return the verdicts with their colours, the worst first, the others in the order given.

    Args:
        verdicts: At least one.
        fail_on: As in `conclude`.
        missing: As in `conclude`.
        spared: Outcomes that are yellow at most.
    """
    coloured = [replace(one, colour=_choose_colour(one, fail_on, missing, spared)) for one in verdicts]
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


def _choose_colour(verdict: Verdict, fail_on: tuple[str, ...], missing: str, spared: Container[str]) -> Colour:
    if verdict.outcome == "ok":
        return "green"
    if verdict.outcome == "unavailable":
        return "red" if missing == "fail" and verdict.explicit else "yellow"
    if verdict.outcome in ("unclosed", "inconclusive") and not verdict.explicit:
        return "yellow"
    return "red" if verdict.outcome in fail_on and verdict.outcome not in spared else "yellow"


def _is_suspect(culprit: Culprit | None, packages: tuple[str, ...]) -> bool:
    from pytest_leakcheck.model.culprit import touches

    return touches(culprit.frames if culprit else (), packages)


def _list_unjudged_growth(recording: Recording, judged: set[str]) -> tuple[Seen, ...]:
    found = []
    for series in recording.series:
        if series.resource in judged or series.iterations < 2:
            continue
        resource = find_resource(series.resource)
        grown = growth(series.readings, resource.tolerance, exact=resource.scarce)
        level = series.readings[-1] - series.readings[0]
        if grown.state != "flat" and level > resource.slack and grown.slope > 0:
            found.append(Seen(series.resource, grown.slope, level))
    return tuple(found)
