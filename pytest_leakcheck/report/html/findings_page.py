"""Convert the file of ``pytest --leakcheck-json=FILE`` to a `Page` with one `Arm` (section) per test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from textwrap import wrap
from typing import Final

from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import find_resource, known
from pytest_leakcheck.model.units import format_amount, format_rate
from pytest_leakcheck.report.culprit_text import rows
from pytest_leakcheck.report.glyphs import UNICODE
from pytest_leakcheck.report.html.view_model import XY, Arm, Chart, Curve, Page, Tone
from pytest_leakcheck.report.json_file import Document, Entry, parse

TONES: Final[Mapping[str, Tone]] = {"green": "good", "yellow": "unsure", "red": "bad"}
_WORST_FIRST: Final = ("red", "yellow", "green")
_LABEL_WIDTH: Final = 13
_TEXT_WIDTH: Final = 80 - _LABEL_WIDTH
BY_COLLECTOR: Final = ", released by the garbage collector only"
# A test with the mark `leakcheck` is judged on about a dozen resources, so only this many green verdicts per test get a
# chart.
_MAX_GREEN_CHARTS: Final = 2


def page_of_findings(data: object, title: str) -> Page:
    """Build the page of a whole report.

    Args:
        data: The decoded JSON of the file.
        title: The title of the page.

    Raises:
        ReportError: The data is not a report of findings, has another schema version, or is damaged.
    """
    return page_of_document(parse(data), title)


def page_of_document(document: Document, title: str) -> Page:
    """Build the page of a whole report that has been parsed."""
    with known(document.resources):
        return _build_page(document, title)


def _build_page(document: Document, title: str) -> Page:
    recordings = {one.test: one for one in document.recordings}
    by_test = [(test, list(entries)) for test, entries in groupby(document.findings, key=lambda one: one.test)]
    arms = tuple(arm_of_test(test, entries, recordings.get(test)) for test, entries in by_test)
    partial = any(recording.stopped == "interrupted" for recording in recordings.values())
    return Page(title, (_count_tones(arms),), arms, partial=partial)


def arm_of_test(test: str, entries: Sequence[Entry], recording: Recording | None) -> Arm:
    """Build the arm of one test.

    Args:
        test: Its node id.
        entries: Its findings, one per verdict, as in the JSON file.
        recording: Its readings; None if there are none.
    """
    colours = {one.colour for one in entries}
    worst = next((colour for colour in _WORST_FIRST if colour in colours), "green")
    culprit = next((one.culprit for one in entries if one.culprit), None)
    not_green = [one for one in entries if one.colour != "green"]
    green = [one for one in entries if one.colour == "green"][:_MAX_GREEN_CHARTS]
    charts = (chart_of_verdict(one, recording) for one in (*not_green, *green))
    return Arm(
        name=test,
        tone=TONES[worst],
        verdicts=tuple(map(verdict_line, entries)),
        culprit=culprit_text(culprit) if culprit else "",
        charts=tuple(chart for chart in charts if chart is not None),
    )


def chart_of_verdict(entry: Entry, recording: Recording | None) -> Chart | None:
    """Return the chart of one verdict; None if `curve_of` finds too few readings."""
    resource = find_resource(entry.resource)
    released = is_of_collector(entry)
    title = f"{entry.resource}: {resource.plural}{BY_COLLECTOR if released else ''}"
    curve = curve_of(entry, recording, "", released=released)
    if curve is None:
        return None
    axis = "size" if entry.points else "iteration"
    return Chart(title, resource.unit, axis, (curve,), verdict_line(entry), limit_of(entry, recording))


def limit_of(entry: Entry, recording: Recording | None) -> int | None:
    """Return the value of the resource at which the process fails; None if the chart shows no such limit.

    The limit bounds what is retained. Charts of peaks over an axis, and of what the garbage collector released, have
    none.
    """
    if recording is None or entry.points or is_of_collector(entry):
        return None
    return recording.limits.get(entry.resource)


def curve_of(entry: Entry, recording: Recording | None, name: str, *, released: bool = False) -> Curve | None:
    """Return the readings of one verdict as a curve; None if there are fewer than two.

    If the test ran over an axis (an argument that takes growing sizes), the curve shows the peak at each size instead.

    Args:
        entry: The finding.
        recording: Its readings.
        name: The label of the curve, which distinguishes arms that share a chart.
        released: Draw the total that the garbage collector has released up to each iteration, instead of the readings.
    """
    if entry.points:
        peaks = tuple((float(one.size), float(one.peak)) for one in entry.points)
        return Curve(name, peaks, TONES[entry.colour])
    series = recording.find(entry.resource) if recording is not None else None
    if series is None or series.iterations < 1:
        return None
    readings = accumulate(series.released, initial=0) if released else series.readings
    points = tuple((float(at), float(value)) for at, value in enumerate(readings))
    return Curve(name, points, TONES[entry.colour], _fitted_line(points, entry))


def is_of_collector(entry: Entry) -> bool:
    """Return whether a verdict is about what the garbage collector released, not about what is retained."""
    return bool(entry.verdict == "unclosed")


def verdict_line(entry: Entry) -> str:
    """Format one verdict as a line. For ``ok``, add the smallest growth that the run would have detected."""
    unit = find_resource(entry.resource).unit
    line = f"{entry.resource} {entry.verdict.replace('_', ' ')}"
    if entry.reason:
        line += f": {entry.reason}"
    if entry.verdict == "ok" and entry.floor:
        per = "size" if entry.points else "iteration"
        line += f"; would have caught {format_amount(entry.floor, unit)} per {per}"
    elif entry.slope and format_rate(entry.slope, unit) not in entry.reason and not entry.points:
        line += f" ({format_rate(entry.slope, unit)})"
    return line


def culprit_text(culprit: Culprit) -> str:
    """Format the cause of a leak as the rows of the terminal report, each with its label before its text."""
    return "\n".join(line for label, text in rows(culprit, _TEXT_WIDTH, UNICODE) for line in _wrap_row(label, text))


def _wrap_row(label: str, text: str) -> list[str]:
    if len(text) <= _TEXT_WIDTH:
        return [f"{label:<{_LABEL_WIDTH}}{text}".rstrip()]
    return wrap(text, 80, initial_indent=f"{label:<{_LABEL_WIDTH}}", subsequent_indent=" " * _LABEL_WIDTH)


def _fitted_line(points: Sequence[XY], entry: Entry) -> tuple[XY, XY] | None:
    """Return the ends of a line with the slope of the verdict; None if the verdict is not about growth.

    The line covers the later half of the series, which is judged, and ends at the last reading.
    """
    if not entry.slope or entry.verdict not in ("leak", "over_budget"):
        return None
    (x0, _y0), (x1, y1) = points[len(points) // 2], points[-1]
    return (x0, y1 - entry.slope * (x1 - x0)), (x1, y1)


def _count_tones(arms: Sequence[Arm]) -> str:
    names: Mapping[Tone, str] = {"bad": "red", "unsure": "yellow", "good": "green"}
    counts = {name: sum(arm.tone == tone for arm in arms) for tone, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "No test was measured."
