"""What a repetition found, as a value: the plan, the readings, the verdicts and what is known of the cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.base import Unavailable

if TYPE_CHECKING:
    from pytest_leakcheck.model.culprit import Culprit, Held

RED: Final = frozenset({"leak", "over_budget", "unclosed"})


@dataclass(frozen=True, slots=True)
class Result:
    """What a repetition found.

    Attributes:
        plan: What was asked.
        recording: All readings.
        verdicts: One per judged resource, in the order of judgement; after a red no further one is judged.
        held: Survivors by resource (for ``unclosed``: what the collector gave back), where they have identities.
        culprit: What is known of the cause of a red.
    """

    plan: Plan
    recording: Recording
    verdicts: tuple[Verdict, ...]
    held: Mapping[str, tuple[Held, ...]]
    culprit: Culprit | None = None


def missing_verdicts(plan: Plan, missing: Mapping[str, Unavailable]) -> tuple[Verdict, ...]:
    """``unavailable`` for each budget of the user's whose resource cannot be read here."""
    return tuple(
        Verdict(budget.resource, "unavailable", reason=str(missing[budget.resource]))
        for budget in plan.budgets
        if budget.resource in missing and budget.explicit
    )


def nothing_judged(plan: Plan, *, restarted: bool) -> tuple[Verdict, ...]:
    """No time was left for an iteration after the start.

    Args:
        plan: What was asked.
        restarted: The series had begun anew.
    """
    reason = "no time was left after warm-up"
    if restarted:
        reason = "began again after things that ended late or were frozen; no time was left to judge the rest"
    advice = "more time would tell: --leakcheck-max-time"
    return tuple(
        Verdict(budget.resource, "inconclusive", reason=reason, advice=advice, explicit=budget.explicit)
        for budget in plan.budgets
    )
