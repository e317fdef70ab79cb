"""Judge the peak of one run of a test by the ``peak=`` of its budget."""

from __future__ import annotations

from dataclasses import replace

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.judge_scaling import RESOLUTION
from pytest_leakcheck.judge.not_judged import unavailable
from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.model.scaling_points import Point
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict


def judge_peak(budget: Budget, point: Point | None, ended: str) -> Verdict:
    """Judge the peak of one resource; `point` is None if its process ended without a result, as `ended` says."""
    if point is None:
        reason = f"no peak: the process that measured it {ended}"
        return Verdict(budget.resource, "inconclusive", reason=reason, peak=True)
    missing = point.why_not(budget.resource)
    if missing:
        return unavailable(budget.resource, missing, peak=True)
    return compare_peak(budget, point.peak(budget.resource, "total"), point.kind(budget.resource))


def compare_peak(budget: Budget, peak: int, kind: Kind = "measured") -> Verdict:
    """Compare a peak above the start level, in the unit of the resource, with the one that the budget allows."""
    unit, allowed = budget.traits.unit, budget.peak or 0
    reason = f"peak +{format_amount(peak, unit)} above the start, {format_amount(allowed, unit)} allowed"
    verdict = Verdict(budget.resource, "ok", level=peak, iterations=1, reason=reason, peak=True, kind=kind)
    excess = peak - allowed
    if excess <= 0:
        return verdict
    if unit == "bytes" and excess <= RESOLUTION[unit]:
        advice = "allow more headroom than that"
        reason += f"; memory peaks are accurate to {format_amount(RESOLUTION[unit], unit)}"
        return replace(verdict, outcome="inconclusive", reason=reason, advice=advice)
    return replace(verdict, outcome="over_budget")
