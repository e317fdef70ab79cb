"""Render report rows for a test that was run over an axis (an argument with growing sizes): chart, law and phases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pytest_leakcheck.config.bounds import singular
from pytest_leakcheck.judge.complexity_law import CONSTANT
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESIDENT, find_resource
from pytest_leakcheck.model.scaling_points import Figure, Law, Point, Scaled, peaks_of
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.glyphs import LEVELS, with_kind

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


def rows(finding: Finding) -> Iterator[tuple[str, str]]:
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


def _chart_rows(scaled: Scaled, verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield a row with a bar per size, and the amounts of the ranks or of the child processes."""
    unit = verdict.traits.unit
    figure: Figure = "total"
    peaks = scaled.peaks(verdict.resource, figure)
    texts = [format_amount(peak, unit) for peak in peaks]
    wide, long = max(map(len, texts)), max(len(str(size)) for size in scaled.sizes)
    label = verdict.resource.removeprefix(GAUGE_PREFIX)
    for point, peak, text in zip(scaled.points, peaks, texts, strict=True):
        bar = LEVELS[-1] * round(_MAX_BAR_WIDTH * peak / max(*peaks, 1))
        line = f"{point.size:>{long}}  {text:>{wide}}  {bar or LEVELS[0]}"
        kind = "" if verdict.kind == "measured" else f"  {verdict.kind}"
        yield label, line + _format_parts(point, verdict.resource) + kind
        label = ""


def _format_parts(point: Point, resource: str) -> str:
    unit = find_resource(resource).unit
    ranks = [peak for recording in point.recordings for peak in peaks_of(recording, resource)]
    if len(ranks) > 1:
        texts = [format_amount(peak, unit) for peak in ranks]
        if len(" + ".join(texts)) <= _MAX_RANKS_WIDTH:
            return f"  {' + '.join(texts)}"
        low, high = format_amount(min(ranks), unit), format_amount(max(ranks), unit)
        return f"  {low} to {high} each" if low != high else f"  {low} each"
    if resource == RESIDENT and point.children:
        return f"  {format_amount(point.children, unit)} of it in children"
    return ""


def _format_law(law: Law, scaled: Scaled, resource: str) -> str:
    unit = find_resource(resource).unit
    text = f"{law.order}: +{format_amount(law.slope, unit)} per {singular(scaled.axis)}"
    if law.exponents is None or law.exponent is None:
        return text
    low, high = law.exponents
    known = f", exponent {law.exponent:.2f} ({low:.2f} to {high:.2f})" if len(scaled.points) > _TOO_FEW_SIZES else ""
    return text + known


def _phase_rows(scaled: Scaled) -> Iterator[tuple[str, str]]:
    """Yield the phases (parts of the test) at the largest size, as read in the rank with the highest peak."""
    point = scaled.points[-1]
    recording = max(point.recordings, key=lambda one: max(one.peaks.values(), default=0))
    label = "phases"
    # Phases have no amounts for gauges (counters that the test defines), so a phase may have no amounts at all.
    for phase in (one for one in recording.phases if one.amounts):
        amounts = ", ".join(
            with_kind(f"{name} {format_amount(peak, find_resource(name).unit)}", recording.kind(name))
            for name, peak in phase.amounts.items()
        )
        yield label, f"{phase.label}: {amounts}" + (f" (highest of {phase.count})" if phase.count > 1 else "")
        label = ""


def _describe_method(scaled: Scaled, resources: set[str]) -> str:
    where = {
        "": "a fresh process per size",
        "thread": "a fresh process per size, its ranks as threads",
        "process": "a fresh process per rank",
        "gloo": "a fresh process per rank, joined over gloo by torch's launcher",
    }[scaled.engine]
    parts = [f"the test's body, in {where}"]
    if RESIDENT in resources:
        children = (
            "child processes of ranks not included"
            if scaled.engine in ("process", "gloo")
            else "child processes read from outside"
        )
        parts.append(f"memory read between calls and from the kernel's high-water mark, {children}")
    if resources - {RESIDENT}:
        parts.append("counters are read at each call and return, not within a C call")
    return "; ".join(parts)
