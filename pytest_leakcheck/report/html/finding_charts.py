"""Chart the readings behind a verdict, or the peaks of a test that ran over an axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.model.verdict import Colour, Verdict
from pytest_leakcheck.report.finding_text import floor_text, per
from pytest_leakcheck.report.html.view_model import XY, Chart, Curve, Tone

TONES: Final[Mapping[Colour | None, Tone]] = {"green": "good", "yellow": "unsure", "red": "bad"}


def chart_of_verdict(
    finding: Finding, verdict: Verdict, title: str = "", name: str = "", beside: Iterable[Curve | None] = ()
) -> Chart | None:
    """Return the chart of one verdict; None if `curve_of` finds too few readings.

    Without a `title`, the resource is described. `name` distinguishes the curve from those `beside` it.
    """
    resource, released = verdict.traits, verdict.outcome == "unclosed"
    curve = curve_of(finding, verdict, name, released=released)
    if curve is None:
        return None
    suffix = ", released by the garbage collector only" if released else ""
    return Chart(
        f"{verdict.resource}: {title or resource.plural}{suffix}",
        resource.unit,
        "size" if finding.scaled is not None else "iteration",
        (curve, *filter(None, beside)),
        _verdict_line(finding, verdict),
    )


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


def _verdict_line(finding: Finding, verdict: Verdict) -> str:
    """Format one verdict as a line. For ``ok``, add the smallest growth that the run would have detected."""
    unit = verdict.traits.unit
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
