"""Judge peaks: of one run by the ``peak=`` of its budget, over the sizes of an axis by a bound.

An axis is an argument of the test that takes growing sizes. The bound is exceeded only if all
exponents that fit the peaks lie beyond the border, and kept only if none does. The verdict is
inconclusive, with the sizes to add, if the growth is close to the resolution or may have ended, if
there are few sizes, or if only the largest size has a higher peak: a wrong red verdict costs more
than two additional sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.scaling_marker import (
    FEWEST_SIZES,
    Bound,
    FigureBound,
    FormulaBound,
    OrderBound,
    SlopeBound,
    mean_ratio,
)
from pytest_leakcheck.judge.complexity_law import BORDER, CONSTANT, fit_law, standstill, trend
from pytest_leakcheck.judge.conclude_finding import unavailable
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.model.recording import Law, Point, Scaled, peaks_of
from pytest_leakcheck.model.resources import Kind, find_resource
from pytest_leakcheck.model.units import Unit, format_amount, format_change, singular

# Growth up to this counts as constant. If a program releases memory, the kernel's high-water mark
# moves in steps of 128 KiB, because each processor counts in batches of 32 pages. The resolution is
# two steps (docs/laws.md).
RESOLUTION: Final[dict[Unit, int]] = {"bytes": 1 << 18, "count": 0}
# Standard deviation of one peak: 34 to 58 KiB, measured over six workloads of 30 trials each.
NOISE: Final[dict[Unit, int]] = {"bytes": 48 << 10, "count": 0}
# The same for a memory peak that was read between two function calls, not from the kernel's
# high-water mark. Such a peak varies with the memory of the allocator and the interpreter.
_EXACT_NOISE: Final = 12 << 10
# Fewer sizes can show growth, but cannot distinguish one law from another.
_MIN_SIZES_FOR_LAW: Final = 5
# Kendall's tau below which peaks have no trend. At this value, three pairs in ten fall.
_MIN_TREND: Final = 0.4
# An interval is shown if it is wider than this share of the slope, so that its ends differ in two
# digits.
_MIN_SHOWN_INTERVAL: Final = 0.04
# Peaks of ranks that differ by at most this share count as equal.
_SAME_PEAK: Final = 0.1


def judge_points(  # noqa: PLR0913 - what was measured, and what is allowed
    resource: str,
    axis: str,
    sizes: Sequence[int],
    peaks: Sequence[int],
    bound: Bound,
    *,
    lower: bool = False,
    exact: bool = False,
    kind: Kind = "measured",
    added_processes: int = 1,
) -> Verdict:
    """Judge the peaks of one resource at sizes that `check_axis` returned.

    The verdict's slope and floor are per unit of the axis, its level is the largest peak, and its
    iterations are the number of sizes. With `lower`, a formula is a lower bound. `exact` peaks are
    exact to a few pages, unlike the kernel's high-water marks. `added_processes` are those that the
    largest size adds to the smallest: each may vary by the resolution. An unknown resource raises
    `KeyError`.
    """
    unit = find_resource(resource).unit
    noise = min(NOISE[unit], _EXACT_NOISE) if exact else NOISE[unit]
    resolution = added_processes * RESOLUTION[unit]
    law = fit_law(sizes, peaks, resolution=resolution, noise=noise)
    case = _Case(
        resource,
        singular(axis),
        axis,
        unit,
        noise,
        tuple(sizes),
        tuple(peaks),
        law,
        kind,
        resolution,
    )
    if isinstance(bound, FormulaBound):
        return _judge_formula(case, bound, lower=lower)
    if isinstance(bound, SlopeBound):
        return _judge_slope(case, bound)
    return _judge_order(case, bound)


@dataclass(frozen=True, slots=True)
class _Case:
    resource: str
    one: str
    axis: str
    unit: Unit
    noise: int
    sizes: tuple[int, ...]
    peaks: tuple[int, ...]
    law: Law
    kind: Kind
    resolution: int

    @property
    def seen(self) -> str:
        return f"{format_change(self.law.growth, self.unit)} from {self.sizes[0]} to {self.sizes[-1]} {self.axis}"

    def say(
        self, outcome: Outcome, reason: str, advice: str = "", floor: float | None = None
    ) -> Verdict:
        slope, level, n = self.law.slope, max(self.peaks), len(self.sizes)
        law, kind = self.law, self.kind
        return Verdict(
            self.resource, outcome, slope, level, n, floor, reason, advice, kind=kind, law=law
        )

    def unsure(self, reason: str) -> Verdict:
        ratio, last = mean_ratio(self.sizes), self.sizes[-1]
        more = [
            round(last * ratio**step)
            for step in range(1, max(2, _MIN_SIZES_FOR_LAW - len(self.sizes)) + 1)
        ]
        return self.say(
            "inconclusive",
            reason,
            f"also run the sizes {', '.join(map(str, more[:-1]))} and {more[-1]}",
        )

    def amount(self, value: float) -> str:
        return format_amount(value, self.unit)

    def describe(self) -> str:
        """Describe the law: its order, and the growth per doubling, per unit or over all sizes."""
        law = self.law
        if law.order == CONSTANT:
            return f"{CONSTANT} from {law.settles} {self.axis} on" if law.settles else CONSTANT
        if law.exponent is not None and law.exponent < BORDER:
            doublings = math.log2(self.sizes[-1] / self.sizes[0])
            return f"{law.order}: {format_change(law.growth / doublings, self.unit)} per doubling"
        # Only linear growth has a single slope. For a curve, show the growth over the measured
        # sizes.
        return (
            f"{law.order}: {self.rate(law.slope, law.slopes) if law.order == 'O(n)' else self.seen}"
        )

    def rate(self, slope: float, slopes: tuple[float, float]) -> str:
        """Format a slope, with its interval if that is wide enough to show in two digits."""
        low, high = slopes
        is_wide = high - low > _MIN_SHOWN_INTERVAL * abs(slope)
        between = f" ({self.amount(low)} to {self.amount(high)})" if is_wide else ""
        return f"{format_change(slope, self.unit)} per {self.one}{between}"


def _explain_doubt(case: _Case) -> str:
    """Return why growth may be absent or ended, as the end of a sentence; empty without a doubt."""
    law, peaks = case.law, case.peaks
    if law.growth <= max(2 * law.resolution, 1):
        return f", too close to the resolution ({case.amount(max(law.resolution, 1))})"
    if len(peaks) < _MIN_SIZES_FOR_LAW:
        clear = all(after - before > 2 * law.resolution for before, after in pairwise(peaks))
        return "" if clear else f", and {len(peaks)} sizes do not show whether it continues"
    if trend(peaks) < _MIN_TREND:
        return ", but not steadily from size to size"
    last = peaks[-1] - peaks[-2]
    if last <= standstill(law.growth, len(peaks), case.noise):
        return f", but {format_change(last, case.unit)} in the last step: it may have settled"
    # Curves with an exponent of -BORDER or below approach a limit. (-BORDER is as far below the
    # logarithm as the next law is above it.) Of series that scatter at random over 1 MiB, one in
    # 600 passes as growth with this check, and one in 45 without it. An exact counter whose last
    # step is not below the mean step shows no sign of a limit.
    slows = case.noise > 0 or last * (len(peaks) - 1) < law.growth
    if slows and law.exponents is not None and law.exponents[0] <= -BORDER:
        return ", and these sizes do not rule out that it settles"
    return ""


def _judge_no_growth(case: _Case) -> Verdict:
    """Judge peaks without growth: ``ok`` unless they fall and rise, or vary over too few sizes."""
    law, sizes, peaks = case.law, case.sizes, case.peaks
    if law.settles is not None:
        # Growth over the last two steps would have been detected.
        unseen, reach = standstill(law.growth, len(sizes), case.noise), sizes[-1] - sizes[-3]
        note = f"{format_change(law.growth, case.unit)}, settled from {law.settles} {case.axis} on"
        return case.say("ok", note, floor=max(unseen, 1) / reach)
    note, wander = "", law.resolution
    if wander > case.resolution:
        rises = all(after - before > case.resolution for before, after in pairwise(peaks[-3:]))
        if (rises and len(peaks) > FEWEST_SIZES) or trend(peaks) >= _MIN_TREND:
            return case.unsure(f"falls by up to {case.amount(wander)} and rises again: {case.seen}")
        if trend(peaks) <= -_MIN_TREND:
            note = f"falls: {case.seen}"
        elif len(peaks) < _MIN_SIZES_FOR_LAW and wander > max(2 * case.resolution, 1):
            return case.unsure(f"varies by up to {case.amount(wander)} between {len(peaks)} sizes")
        else:
            note = f"varies by up to {case.amount(wander)} between sizes, without a trend"
    return case.say("ok", note, floor=max(wander, 1) / (sizes[-1] - sizes[0]))


def _judge_order(case: _Case, bound: OrderBound) -> Verdict:
    """Judge a bound by a law: O(1) allows growth that has ended; the others compare exponents."""
    seen, exponents = f"{case.describe()}, {bound} allowed", case.law.exponents
    if exponents is None:
        return _judge_no_growth(case) if bound.exponent is None else case.say("ok", seen)
    if bound.exponent is not None:
        if len(case.sizes) < _MIN_SIZES_FOR_LAW:
            return case.unsure(
                f"{len(case.sizes)} sizes do not distinguish {bound} from other laws"
            )
        (low, high), border = exponents, bound.exponent + BORDER
        if high <= border:
            return case.say("ok", seen)
        if low <= border:
            between = f"the exponent is between {low:.2f} and {high:.2f}, and up to {border:.2f} counts as {bound}"
            return case.unsure(f"{case.describe()}; {between}")
    doubt = _explain_doubt(case)
    return case.unsure(f"{case.seen}{doubt}") if doubt else case.say("over_budget", seen)


def _judge_slope(case: _Case, bound: SlopeBound) -> Verdict:
    """Judge the slope over all sizes or, if the curve gets steeper, over the last step."""
    law, where = case.law, ""
    slope, (low, high) = law.slope, law.slopes
    if law.exponent is not None and law.exponent > 1 + BORDER:
        step = case.sizes[-1] - case.sizes[-2]
        slope, error = (case.peaks[-1] - case.peaks[-2]) / step, 3 * case.noise / step
        low, high = slope - error, slope + error
        where = f" between {case.sizes[-2]} and {case.sizes[-1]}, where it is steepest"
    seen = f"{case.rate(slope, (low, high))}{where}, at most {case.amount(bound.per)} allowed"
    # Slopes are quotients, so a difference in the last digits of a float does not count.
    limit = bound.per * (1 + 1e-9)
    if low <= limit < high:
        return case.unsure(f"{seen}: too close to decide")
    return case.say("ok" if high <= limit else "over_budget", seen)


def _judge_formula(case: _Case, bound: FormulaBound, *, lower: bool) -> Verdict:
    doubtful = ""
    for size, peak in zip(case.sizes, case.peaks, strict=True):
        limit = bound.at(size)
        excess = limit - peak if lower else peak - limit
        if excess <= 0:
            continue
        # A formula that is only a number would repeat the limit in the text.
        source = "" if bound.is_number else f" ({str(bound).strip().lstrip('<>= ')})"
        rule = (
            f"at least {case.amount(limit)} required"
            if lower
            else f"at most {case.amount(limit)} allowed"
        )
        seen = f"at {case.axis} {size}: {case.amount(peak)}, {rule}{source}"
        if excess > case.noise:
            return case.say("over_budget", seen)
        doubtful = doubtful or seen
    if doubtful:
        reason = f"{doubtful}; that is within the noise of {case.amount(case.noise)}"
        return case.say("inconclusive", reason, "allow more headroom than that")
    return case.say("ok", "")


def advise_ranks(verdict: Verdict, aim: FigureBound, scaled: Scaled) -> Verdict:
    """Add advice if the sum over the ranks is too high because each takes as much as one alone."""
    alone, world = scaled.points[0], scaled.points[-1]
    # Ranks that are threads share the counters of their process, except gauges.
    peaks = [peak for recording in world.recordings for peak in peaks_of(recording, aim.resource)]
    peak_alone = alone.peak(aim.resource, "total") if alone.size == 1 else 0
    over = (
        verdict.outcome == "over_budget"
        and aim.figure == "total"
        and peak_alone > 0
        and len(peaks) == world.size
    )
    if not over or any(abs(peak - peak_alone) > _SAME_PEAK * peak_alone for peak in peaks):
        return verdict
    advice = (
        f"each rank takes as much as one alone: divide what is meant for all ranks by {scaled.axis}"
    )
    return replace(verdict, advice=advice)


def judge_peak(budget: Budget, point: Point | None, ended: str) -> Verdict:
    """Judge the peak of one resource; without a `point`, its process ended as `ended` says."""
    if point is None:
        reason = f"no peak: the process that measured it {ended}"
        return Verdict(budget.resource, "inconclusive", reason=reason, peak=True)
    missing = point.why_not(budget.resource)
    if missing:
        return unavailable(budget.resource, missing, peak=True)
    unit, allowed = budget.traits.unit, budget.peak or 0
    peak, kind = point.peak(budget.resource, "total"), point.kind(budget.resource)
    reason = (
        f"peak +{format_amount(peak, unit)} above the start, {format_amount(allowed, unit)} allowed"
    )
    verdict = Verdict(
        budget.resource, "ok", level=peak, iterations=1, reason=reason, peak=True, kind=kind
    )
    excess = peak - allowed
    if excess <= 0:
        return verdict
    if unit == "bytes" and excess <= RESOLUTION[unit]:
        advice = "allow more headroom than that"
        reason += f"; memory peaks are accurate to {format_amount(RESOLUTION[unit], unit)}"
        return replace(verdict, outcome="inconclusive", reason=reason, advice=advice)
    return replace(verdict, outcome="over_budget")
