"""Convert the file of ``pytest --leakcheck-json=FILE`` to a `Page` with one `Arm` (section) per test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import Final, Literal

from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource, known
from pytest_leakcheck.model.units import format_amount, format_rate
from pytest_leakcheck.model.verdict import Colour, Verdict
from pytest_leakcheck.report.culprit_text import rows
from pytest_leakcheck.report.glyphs import UNICODE
from pytest_leakcheck.report.html.view_model import XY, Arm, Chart, Curve, Page, Tone
from pytest_leakcheck.report.json_file import Document, read

TONES: Final[Mapping[Colour | None, Tone]] = {"green": "good", "yellow": "unsure", "red": "bad"}
_LABEL_WIDTH: Final = 13
_TEXT_WIDTH: Final = 80 - _LABEL_WIDTH
BY_COLLECTOR: Final = ", released by the garbage collector only"
# A test with the mark `leakcheck` is judged on about a dozen resources, so only this many green verdicts per test get a
# chart.
_MAX_GREEN_CHARTS: Final = 2


def page_of_findings(text: str, title: str) -> Page:
    """Build the page of a whole report.

    Args:
        text: The content of the file.
        title: The title of the page.

    Raises:
        ReportError: The text is not a report of findings, has another schema version, or is damaged.
        ValueError: The text is not JSON.
    """
    return page_of_document(read(text), title)


def page_of_document(document: Document, title: str) -> Page:
    """Build the page of a whole report that has been parsed."""
    with known(document.resources):
        return _build_page(document, title)


def _build_page(document: Document, title: str) -> Page:
    arms = tuple(map(arm_of_test, document.findings))
    partial = document.partial or any(finding.recording.stopped == "interrupted" for finding in document.findings)
    return Page(title, (_count_tones(arms),), arms, partial=partial)


def arm_of_test(finding: Finding) -> Arm:
    """Build the arm of one test."""
    not_green = [one for one in finding.verdicts if one.colour != "green"]
    green = [one for one in finding.verdicts if one.colour == "green"][:_MAX_GREEN_CHARTS]
    charts = (chart_of_verdict(finding, one) for one in (*not_green, *green))
    return Arm(
        name=finding.test,
        tone=TONES[finding.colour],
        verdicts=tuple(verdict_line(finding, one) for one in finding.verdicts),
        culprit=culprit_text(finding.culprit) if finding.culprit else "",
        charts=tuple(chart for chart in charts if chart is not None),
    )


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

    The limit bounds what is retained. Charts of peaks over an axis, and of what the garbage collector released, have
    none.
    """
    if finding.scaled is not None or is_of_collector(verdict):
        return None
    return finding.recording.limits.get(verdict.resource)


def curve_of(finding: Finding, verdict: Verdict, name: str, *, released: bool = False) -> Curve | None:
    """Return the readings behind one verdict as a curve; None if there are fewer than two.

    If the test ran over an axis (an argument that takes growing sizes), the curve shows the peak at each size instead.

    Args:
        finding: What was found in the test.
        verdict: One of its verdicts.
        name: The label of the curve, which distinguishes arms that share a chart.
        released: Draw the total that the garbage collector has released up to each iteration, instead of the readings.
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
        line += f"; would have caught {format_amount(verdict.floor, unit)} per {axis_of(finding)}"
    elif verdict.slope and format_rate(verdict.slope, unit) not in verdict.reason and finding.scaled is None:
        line += f" ({format_rate(verdict.slope, unit)})"
    return line


def culprit_text(culprit: Culprit) -> str:
    """Format the cause of a leak as the rows of the terminal report, each with its label before its text."""
    return "\n".join(line for label, text in rows(culprit, _TEXT_WIDTH, UNICODE) for line in _wrap_row(label, text))


def _wrap_row(label: str, text: str) -> list[str]:
    if len(text) <= _TEXT_WIDTH:
        return [f"{label:<{_LABEL_WIDTH}}{text}".rstrip()]
    return wrap(text, 80, initial_indent=f"{label:<{_LABEL_WIDTH}}", subsequent_indent=" " * _LABEL_WIDTH)


def _fitted_line(points: Sequence[XY], verdict: Verdict) -> tuple[XY, XY] | None:
    """Return the ends of a line with the slope of the verdict; None if the verdict is not about growth.

    The line covers the later half of the series, which is judged, and ends at the last reading.
    """
    if not verdict.slope or verdict.outcome not in ("leak", "over_budget"):
        return None
    (x0, _y0), (x1, y1) = points[len(points) // 2], points[-1]
    return (x0, y1 - verdict.slope * (x1 - x0)), (x1, y1)


def _count_tones(arms: Sequence[Arm]) -> str:
    names: Mapping[Tone, str] = {"bad": "red", "unsure": "yellow", "good": "green"}
    counts = {name: sum(arm.tone == tone for arm in arms) for tone, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "No test was measured."
