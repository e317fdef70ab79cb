"""Chart the readings behind a verdict, or the peaks of a test that ran over an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.model.verdict import Colour, Verdict
from pytest_leakcheck.report.finding_text import floor_text, per
from pytest_leakcheck.report.html.view_model import XY, Chart, Curve, Tone

TONES: Final[Mapping[Colour | None, Tone]] = {"green": "good", "yellow": "unsure", "red": "bad"}
BY_COLLECTOR: Final = ", released by the garbage collector only"


def chart_of_verdict(finding: Finding, verdict: Verdict) -> Chart | None:
    """Return the chart of one verdict; None if `curve_of` finds too few readings."""
    resource = find_resource(verdict.resource)
    released = is_of_collector(verdict)
    title = f"{verdict.resource}: {resource.plural}{BY_COLLECTOR if released else ''}"
    curve = curve_of(finding, verdict, "", released=released)
    if curve is None:
        return None
    limit, line = limit_of(finding, verdict), verdict_line(finding, verdict)
    return Chart(title, resource.unit, axis_of(finding), (curve,), line, limit)


def axis_of(finding: Finding) -> Literal["size", "iteration"]:
    """Return what the curves of a test run over."""
    return "size" if finding.scaled is not None else "iteration"


def limit_of(finding: Finding, verdict: Verdict) -> int | None:
    """Return the value of the resource at which the process fails; None if the chart shows no such limit.

    It bounds what is retained, so charts of peaks over an axis, and of what the garbage collector released, have none.
    """
    if finding.scaled is not None or is_of_collector(verdict):
        return None
    return finding.recording.limits.get(verdict.resource)


def curve_of(finding: Finding, verdict: Verdict, name: str, *, released: bool = False) -> Curve | None:
    """Return the readings behind one verdict as a curve; None if there are fewer than two.

    For a test over an axis (an argument that takes growing sizes), it shows the peak at each size. With `released`, it
    shows the total that the garbage collector has released up to each iteration. `name` distinguishes arms that share a
    chart.
    """
    tone, scaled = TONES[verdict.colour], finding.scaled
    if scaled is not None:
        peaks = zip(scaled.sizes, scaled.peaks(verdict.resource, "total"), strict=True)
        points = tuple((float(size), float(peak)) for size, peak in peaks)
        return Curve(name, points, tone) if points else None
    series = finding.recording.find(verdict.resource)
    if series is None or series.iterations < 1:
        return None
    readings = accumulate(series.released, initial=0) if released else series.readings
    points = tuple((float(at), float(value)) for at, value in enumerate(readings))
    return Curve(name, points, tone, _fitted_line(points, verdict))


def is_of_collector(verdict: Verdict) -> bool:
    """Return whether a verdict is about what the garbage collector released, not about what is retained."""
    return verdict.outcome == "unclosed"


def verdict_line(finding: Finding, verdict: Verdict) -> str:
    """Format one verdict as a line. For ``ok``, add the smallest growth that the run would have detected."""
    unit = find_resource(verdict.resource).unit
    line = f"{verdict.resource} {verdict.outcome.replace('_', ' ')}"
    if verdict.reason:
        line += f": {verdict.reason}"
    if verdict.outcome == "ok" and verdict.floor:
        line += f"; would have caught {floor_text(verdict, per(finding))}"
    elif verdict.slope and format_rate(verdict.slope, unit) not in verdict.reason and finding.scaled is None:
        line += f" ({format_rate(verdict.slope, unit)})"
    return line


def _fitted_line(points: Sequence[XY], verdict: Verdict) -> tuple[XY, XY] | None:
    """Return a line with the slope of the verdict over the later, judged half of the series; None without growth."""
    if not verdict.slope or verdict.outcome not in ("leak", "over_budget"):
        return None
    (x0, _y0), (x1, y1) = points[len(points) // 2], points[-1]
    return (x0, y1 - verdict.slope * (x1 - x0)), (x1, y1)
