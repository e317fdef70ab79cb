"""The peaks of one resource over the sizes of an axis, and a bound, in; a `Verdict` out. Pure.

What is said of a law follows from how surely it is known: it is called exceeded only where all exponents that the peaks
admit lie beyond the border, and kept only where none does. Growth near what can be told apart at all, few sizes, and
peaks that rise at the largest size alone are inconclusive, with the sizes to add: a wrong red costs more than two sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pytest_leakcheck.config.bounds import Bound, FormulaBound, OrderBound, SlopeBound, singular
from pytest_leakcheck.config.scaling_marker import FEWEST_SIZES, mean_ratio
from pytest_leakcheck.judge.complexity_law import BORDER, CONSTANT, fit_law, standstill, trend
from pytest_leakcheck.model.resources import Kind, find_resource
from pytest_leakcheck.model.scaling_points import Law
from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.model.verdict import Outcome, Verdict

# Growth up to this is called constant. Where a program gives memory back, the kernel's high-water mark comes in steps of
# 128 KiB, 32 pages of one processor: this is two of them (docs/laws.md).
RESOLUTION: Final[dict[Unit, int]] = {"bytes": 1 << 18, "count": 0}
# The standard deviation of one peak: measured, 34 to 58 KiB over six workloads of 30 trials.
NOISE: Final[dict[Unit, int]] = {"bytes": 48 << 10, "count": 0}
# The same where it was read between two calls: the allocator's and the interpreter's own.
EXACT: Final = 12 << 10
# Fewer sizes tell growth from none, and not one law from another.
_ENOUGH: Final = 5
# Kendall's tau below which peaks do not trend: of six, three pairs in ten fall or tie.
_TREND: Final = 0.4
# An interval is shown where it is wider than this share of the slope, so that its ends differ in two digits.
_SHOWN: Final = 0.04


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
) -> tuple[Verdict, Law]:
    """Judge the peaks of one resource.

    Args:
        resource: A key of `RESOURCES`, or ``gauge:<name>``.
        axis: What the sizes are sizes of.
        sizes: As `check_axis` gives them.
        peaks: The peak at each size, in the unit of the resource.
        bound: What is allowed.
        lower: A formula says how much there must be at least.
        exact: The peaks are known to a few pages, more exactly than the kernel's high-water marks.
        kind: How the peaks were measured.

    Returns:
        The verdict and the law. The verdict's slope and floor are per unit of the axis, its level is the largest
        peak, its iterations are the sizes.

    Raises:
        KeyError: No such resource.
        ValueError: Fewer than 3 sizes, or another number of peaks.
    """
    unit = find_resource(resource).unit
    noise = min(NOISE[unit], EXACT) if exact else NOISE[unit]
    law = fit_law(sizes, peaks, resolution=RESOLUTION[unit], noise=noise)
    case = _Case(resource, singular(axis), axis, unit, noise, tuple(sizes), tuple(peaks), law, kind)
    if isinstance(bound, FormulaBound):
        verdict = _beyond(case, bound, lower=lower)
    elif isinstance(bound, SlopeBound):
        verdict = _steeper(case, bound)
    else:
        verdict = _constant(case, bound) if bound.exponent is None else _order(case, bound, bound.exponent)
    return verdict, law


@dataclass(frozen=True, slots=True)
class _Case:
    """One resource under judgement: what the questions share."""

    resource: str
    one: str
    axis: str
    unit: Unit
    noise: int
    sizes: tuple[int, ...]
    peaks: tuple[int, ...]
    law: Law
    kind: Kind

    @property
    def resolution(self) -> int:
        return RESOLUTION[self.unit]

    @property
    def seen(self) -> str:
        return f"{self.signed(self.law.growth)} from {self.sizes[0]} to {self.sizes[-1]} {self.axis}"

    def say(self, outcome: Outcome, reason: str, advice: str = "", floor: float | None = None) -> Verdict:
        slope, level = self.law.slope, max(self.peaks)
        return Verdict(self.resource, outcome, slope, level, len(self.sizes), floor, reason, advice, kind=self.kind)

    def unsure(self, reason: str) -> Verdict:
        ratio, last = mean_ratio(self.sizes), self.sizes[-1]
        more = [round(last * ratio**step) for step in range(1, max(2, _ENOUGH - len(self.sizes)) + 1)]
        return self.say("inconclusive", reason, f"add the sizes {', '.join(map(str, more[:-1]))} and {more[-1]}")

    def amount(self, value: float) -> str:
        return format_amount(value, self.unit)

    def signed(self, value: float) -> str:
        return f"{'+' if value >= 0 else ''}{self.amount(value)}"

    def describe(self) -> str:
        """The law in words: its order, and what one step along the axis adds."""
        law = self.law
        if law.order == CONSTANT:
            return f"{CONSTANT} from {law.settles} {self.axis} on" if law.settles else CONSTANT
        if law.exponent is not None and law.exponent < BORDER:
            doublings = math.log2(self.sizes[-1] / self.sizes[0])
            return f"{law.order}: {self.signed(law.growth / doublings)} per doubling"
        # A slope tells of a line, and of a curve what it was where it was measured.
        return f"{law.order}: {self.rate(law.slope, law.slopes) if law.order == 'O(n)' else self.seen}"

    def rate(self, slope: float, slopes: tuple[float, float]) -> str:
        """A slope, with its interval where that is wide enough to show in two digits."""
        low, high = slopes
        between = f" ({self.amount(low)} to {self.amount(high)})" if high - low > _SHOWN * abs(slope) else ""
        return f"{self.signed(slope)} per {self.one}{between}"


def _constant(case: _Case, bound: OrderBound) -> Verdict:
    """O(1): no growth, or growth that has ended."""
    if case.law.order == CONSTANT:
        return _still(case)
    excess = f"{case.describe()}, {bound} allowed"
    doubt = _doubt(case)
    return case.unsure(f"{case.seen}{doubt}") if doubt else case.say("over_budget", excess)


def _doubt(case: _Case) -> str:
    """Why growth may be none, or may have ended, as the end of a sentence; empty where there is no doubt."""
    law, peaks = case.law, case.peaks
    if law.growth <= max(2 * law.resolution, 1):
        return f", near what can be told from none ({case.amount(max(law.resolution, 1))})"
    if len(peaks) < _ENOUGH:
        clear = all(after - before > 2 * law.resolution for before, after in pairwise(peaks))
        return "" if clear else f", and {len(peaks)} sizes do not tell whether it goes on"
    if trend(peaks) < _TREND:
        return ", and most sizes have no share in it"
    last = peaks[-1] - peaks[-2]
    if last <= standstill(law.growth, len(peaks), case.noise):
        return f", but {case.signed(last)} in the last step: it may have settled"
    # As far below the logarithm as the next law is above it lie curves with a height that they never reach. Of peaks that
    # scatter at random over 1 MiB, one series in 600 is left by now; without this question, one in 45.
    # An exact counter whose last step is no smaller than the others shows no sign of it.
    slows = case.noise > 0 or last * (len(peaks) - 1) < law.growth
    if slows and law.exponents is not None and law.exponents[0] <= -BORDER:
        return ", and as far as these sizes tell it may settle"
    return ""


def _still(case: _Case) -> Verdict:
    """No growth on the whole: unless it fell first, and rises in the end."""
    law, sizes, peaks = case.law, case.sizes, case.peaks
    if law.settles is not None:
        # Growth over the last two steps is what would have shown.
        unseen, reach = standstill(law.growth, len(sizes), case.noise), sizes[-1] - sizes[-3]
        note = f"{case.signed(law.growth)}, settled from {law.settles} {case.axis} on"
        return case.say("ok", note, floor=max(unseen, 1) / reach)
    note, wander = "", law.resolution
    if wander > case.resolution:
        rises = len(peaks) > FEWEST_SIZES and all(
            after - before > case.resolution for before, after in pairwise(peaks[-3:])
        )
        if rises or trend(peaks) >= _TREND:
            return case.unsure(f"falls by up to {case.amount(wander)} and rises again: {case.seen}")
        if trend(peaks) <= -_TREND:
            note = f"falls: {case.seen}"
        elif len(peaks) < _ENOUGH and wander > max(2 * case.resolution, 1):
            return case.unsure(f"moves by up to {case.amount(wander)} between {len(peaks)} sizes")
        else:
            note = f"moves by up to {case.amount(wander)} between sizes, with no trend"
    return case.say("ok", note, floor=max(wander, 1) / (sizes[-1] - sizes[0]))


def _order(case: _Case, bound: OrderBound, allowed: float) -> Verdict:
    """Another law: by the interval of the exponent."""
    law = case.law
    if law.exponents is None:
        return case.say("ok", f"{case.describe()}, {bound} allowed")
    if len(case.sizes) < _ENOUGH:
        return case.unsure(f"{len(case.sizes)} sizes do not tell {bound} from other laws")
    low, high = law.exponents
    border = allowed + BORDER
    if high <= border:
        return case.say("ok", f"{case.describe()}, {bound} allowed")
    if low <= border:
        between = f"the exponent lies between {low:.2f} and {high:.2f}, up to {border:.2f} is {bound}"
        return case.unsure(f"{case.describe()}; {between}")
    doubt = _doubt(case)
    if doubt:
        return case.unsure(f"{case.seen}{doubt}")
    return case.say("over_budget", f"{case.describe()}, {bound} allowed")


def _steeper(case: _Case, bound: SlopeBound) -> Verdict:
    """A slope: that of the whole, or where it gets steeper, that at its end."""
    law, where = case.law, ""
    slope, (low, high) = law.slope, law.slopes
    if law.exponent is not None and law.exponent > 1 + BORDER:
        step = case.sizes[-1] - case.sizes[-2]
        slope, error = (case.peaks[-1] - case.peaks[-2]) / step, 3 * case.noise / step
        low, high = slope - error, slope + error
        where = f" between {case.sizes[-2]} and {case.sizes[-1]}, where it is steepest"
    seen = f"{case.rate(slope, (low, high))}{where}, at most {case.amount(bound.per)} allowed"
    # Slopes are quotients: what differs in the last digits of a float is the same.
    limit = bound.per * (1 + 1e-9)
    if low <= limit < high:
        return case.unsure(f"{seen}: too near to tell them apart")
    return case.say("ok" if high <= limit else "over_budget", seen)


def _beyond(case: _Case, bound: FormulaBound, *, lower: bool) -> Verdict:
    """A formula: at every size, and the first that breaks it is named."""
    doubtful = ""
    for size, peak in zip(case.sizes, case.peaks, strict=True):
        limit = bound.at(size)
        excess = limit - peak if lower else peak - limit
        if excess <= 0:
            continue
        # A limit that is a number says everything already.
        source = "" if bound.formula.is_number else f" ({str(bound).strip().lstrip('<>= ')})"
        rule = f"at least {case.amount(limit)} wanted" if lower else f"at most {case.amount(limit)} allowed"
        seen = f"at {case.axis} {size}: {case.amount(peak)}, {rule}{source}"
        if excess > case.noise:
            return case.say("over_budget", seen)
        doubtful = doubtful or seen
    if doubtful:
        reason = f"{doubtful}; that is within the noise, {case.amount(case.noise)}"
        return case.say("inconclusive", reason, "give the bound more room than that")
    return case.say("ok", "")
