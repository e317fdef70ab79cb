"""Create the verdicts on resources that could not be judged, with the reason.

The outcome of these verdicts is ``unavailable`` or ``inconclusive``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import ceil

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.result import RED, Result
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.base import Unavailable


def unavailable(resource: str, why: str, *, peak: bool = False) -> Verdict:
    """Report that a resource cannot be read here.

    Args:
        resource: The name of the resource.
        why: The reason.
        peak: The verdict is about the peak of one run.
    """
    return Verdict(resource, "unavailable", reason=why, peak=peak)


def missing_verdicts(plan: Plan, missing: Mapping[str, Unavailable]) -> tuple[Verdict, ...]:
    """Return an ``unavailable`` verdict for each explicit budget whose resource cannot be read here."""
    return tuple(
        unavailable(budget.resource, str(missing[budget.resource]))
        for budget in plan.budgets
        if budget.resource in missing and budget.explicit
    )


def no_time_left(budgets: Iterable[Budget], seconds: float, *, restarted: bool) -> tuple[Verdict, ...]:
    """Return an ``inconclusive`` verdict for each budget, because no time was left after warm-up.

    No iteration followed after the start level was read.

    Args:
        budgets: The budgets that would have been judged.
        seconds: How long the test ran.
        restarted: Whether the series had been started again.
    """
    reason = "no time was left after warm-up"
    if restarted:
        reason = "the series was restarted (late release, frozen garbage or full cache); no time was left after that"
    advice = _advise_more_time(seconds)
    return tuple(
        Verdict(budget.resource, "inconclusive", reason=reason, advice=advice, explicit=budget.explicit)
        for budget in budgets
    )


def stopped_early(plan: Plan, seconds: float, *, start_read: bool) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that was stopped before its first verdict.

    Args:
        plan: The plan of the test.
        seconds: How long the test ran.
        start_read: Whether the start level had been read.
    """
    names = [budget.resource for budget in plan.budgets] or [*RESOURCES]
    missed = "a verdict" if start_read else "the first reading"
    reason = f"stopped after {seconds:.1f} s, before {missed}"
    return Verdict(names[0], "inconclusive", reason=reason, advice=_advise_more_time(seconds))


def does_not_repeat(plan: Plan, iteration: int, ended_with: str) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that passed at first and failed in a later iteration.

    The test failed for a reason other than a leak.

    Args:
        plan: The plan of the test.
        iteration: The number of the iteration that failed.
        ended_with: The error, on one line.
    """
    first = plan.budgets[0]
    return Verdict(
        first.resource,
        "inconclusive",
        iterations=iteration - 1,
        reason=f"not repeatable: iteration {iteration} ended with {ended_with}",
        advice="make the test clean up after itself",
        explicit=first.explicit,
    )


def measurement_failed(resource: str, reason: str, *, explicit: bool) -> Verdict:
    """Return an ``inconclusive`` verdict for a test that could not be measured because of an error of the plugin.

    Args:
        resource: The resource that the verdict is about.
        reason: The error, as text.
        explicit: Whether the test names this resource.
    """
    advice = "if the test does not replace or close what the plugin uses, please report this"
    return Verdict(resource, "inconclusive", reason=reason, advice=advice, explicit=explicit)


def objects_miscounted(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict on objects if the test changes which ones the collector lists: ``inconclusive``.

    Args:
        verdict: What the readings show.
        reason: What the test does.
    """
    advice = "call it in a fixture of wider scope, or bound memory: heap_budget()"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=advice, floor=None)


def left_early(result: Result, step: int | None) -> Result:
    """Return the result of a loop that the test left before its end: ``inconclusive``, unless it is red already.

    Args:
        result: What the loop has found.
        step: The number of the step in which it was left; None if it was never begun.
    """
    if any(verdict.outcome in RED for verdict in result.verdicts):
        return result
    first = result.plan.budgets[0]
    verdict = Verdict(
        first.resource,
        "inconclusive",
        reason="the loop was never begun" if step is None else f"left in step {step}, by break, return or an exception",
        advice="let the loop run to its end: it ends as soon as the verdict is known",
        explicit=first.explicit,
    )
    return replace(result, verdicts=(verdict,))


def process_lost(resource: str, iterations: int, reason: str, advice: str) -> Verdict:
    """Return an ``inconclusive`` verdict for a test whose process ended before it reported a verdict.

    Args:
        resource: The resource that the verdict is about.
        iterations: How many iterations the process is known to have completed.
        reason: Why the process gave no verdict.
        advice: What to do.
    """
    return Verdict(resource, "inconclusive", iterations=iterations, reason=reason, advice=advice)


def _advise_more_time(seconds: float) -> str:
    """Recommend a time limit for a test of which a few iterations took this long."""
    return f"allow about ten times as long: --leakcheck-max-time={ceil(10 * seconds)}"
