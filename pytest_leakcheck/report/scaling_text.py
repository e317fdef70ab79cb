"""Render report rows for a test that was run over an axis (an argument with growing sizes): chart, law and phases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_leakcheck.config.bounds import singular
from pytest_leakcheck.judge.complexity_law import CONSTANT
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT, find_resource
from pytest_leakcheck.model.scaling_points import Law, Point, Scaled, peaks_of
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.glyphs import LEVELS, Row, under, with_kind

_MAX_BAR_WIDTH: Final = 24
# Columns next to a bar for the amounts of the ranks (the processes or threads that run the test together).
_MAX_RANKS_WIDTH: Final = 24
# Almost any exponent fits three sizes, so the exponent of a law is shown only for more sizes than this.
_TOO_FEW_SIZES: Final = 3


def headline(finding: Finding) -> str:
    """Return the headline for `finding_text.headline`, not truncated."""
    verdict, scaled = finding.verdict, finding.scaled
    assert scaled is not None
    name = with_kind(verdict.resource.removeprefix(GAUGE_PREFIX), verdict.kind)
    if verdict.outcome == "over_budget":
        return f"{name} {verdict.reason}"
    if verdict.outcome != "ok":
        return f"{name} {verdict.outcome}: {verdict.reason}"
    sizes = f"{scaled.axis} {scaled.sizes[0]}…{scaled.sizes[-1]}"
    return f"{name} ok over {sizes} (budget {finding.budgets[verdict.resource]})"


def rows(finding: Finding) -> Iterator[Row]:
    """Yield (label, text) rows."""
    scaled = finding.scaled
    if scaled is None or not scaled.points:
        return
    shown: set[str] = set()
    for verdict in finding.verdicts:
        law = verdict.law
        if law is not None and verdict.resource not in shown:
            shown.add(verdict.resource)
            yield from _chart_rows(scaled, verdict)
            if law.order != CONSTANT:
                yield "law", with_kind(_format_law(law, scaled, verdict.resource), verdict.kind)
        if verdict is not finding.verdict and verdict.reason:
            yield "", f"{verdict.outcome.replace('_', ' ')}: {with_kind(verdict.reason, verdict.kind)}"
    yield from _phase_rows(scaled)
    yield "measured", _describe_method(scaled, shown)


def _chart_rows(scaled: Scaled, verdict: Verdict) -> Iterator[Row]:
    """Yield a row with a bar per size, and the amounts of the ranks or of the child processes."""
    peaks = scaled.peaks(verdict.resource, "total")
    texts = [format_amount(peak, verdict.traits.unit) for peak in peaks]
    wide, long = max(map(len, texts)), max(len(str(size)) for size in scaled.sizes)
    kind = "" if verdict.kind == "measured" else f"  {verdict.kind}"
    lines = []
    for point, peak, text in zip(scaled.points, peaks, texts, strict=True):
        bar = LEVELS[-1] * round(_MAX_BAR_WIDTH * peak / max(*peaks, 1)) or LEVELS[0]
        parts = _format_parts(point, verdict.resource)
        lines.append("  ".join(filter(None, (f"{point.size:>{long}}", f"{text:>{wide}}", bar, parts))) + kind)
    yield from under(verdict.resource.removeprefix(GAUGE_PREFIX), lines)


def _format_parts(point: Point, resource: str) -> str:
    unit = find_resource(resource).unit
    ranks = [peak for recording in point.recordings for peak in peaks_of(recording, resource)]
    if len(ranks) > 1:
        low, high = format_amount(min(ranks), unit), format_amount(max(ranks), unit)
        each = f"{low} to {high} each" if low != high else f"{low} each"
        text = " + ".join(format_amount(peak, unit) for peak in ranks)
        return text if len(text) <= _MAX_RANKS_WIDTH else each
    return f"{format_amount(point.children, unit)} of it in children" if resource == RESIDENT and point.children else ""


def _format_law(law: Law, scaled: Scaled, resource: str) -> str:
    unit = find_resource(resource).unit
    text = f"{law.order}: +{format_amount(law.slope, unit)} per {singular(scaled.axis)}"
    if law.exponents is None or law.exponent is None or len(scaled.points) <= _TOO_FEW_SIZES:
        return text
    return text + ", exponent {:.2f} ({:.2f} to {:.2f})".format(law.exponent, *law.exponents)


def _phase_rows(scaled: Scaled) -> Iterator[Row]:
    """Yield the phases (parts of the test) at the largest size, as read in the rank with the highest peak."""
    recording = max(scaled.points[-1].recordings, key=lambda one: max(one.peaks.values(), default=0))
    lines = []
    for phase in recording.phases:
        amounts = ", ".join(
            with_kind(f"{name} {format_amount(peak, find_resource(name).unit)}", recording.kind(name))
            for name, peak in phase.amounts.items()
        )
        highest = f" (highest of {phase.count})" if phase.count > 1 else ""
        # Phases have no amounts for gauges (counters that the test defines), so a phase may have no amounts at all.
        lines += [f"{phase.label}: {amounts}{highest}"] if amounts else []
    yield from under("phases", lines)


def _describe_method(scaled: Scaled, resources: set[str]) -> str:
    where = {
        "": "a fresh process per size",
        "thread": "a fresh process per size, its ranks as threads",
        "process": "a fresh process per rank",
        "gloo": "a fresh process per rank, joined over gloo by torch's launcher",
    }[scaled.engine]
    parts = [f"the test's body, in {where}"]
    if RESIDENT in resources:
        ranks = scaled.engine not in ("", "thread")
        children = "child processes of ranks not included" if ranks else "child processes read from outside"
        parts.append(f"memory read between calls and from the kernel's high-water mark, {children}")
    if resources - {RESIDENT}:
        parts.append("counters are read at each call and return, not within a C call")
    return "; ".join(parts)
