"""What ``pytest --leakcheck-json=FILE`` wrote, as a `Page`: an arm per test, a chart per resource that was judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from textwrap import wrap
from typing import Any, Final

from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.model.decoding import DecodeError, decode
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES, find_resource
from pytest_leakcheck.model.units import format_amount, format_rate
from pytest_leakcheck.report.culprit_text import rows
from pytest_leakcheck.report.glyphs import UNICODE
from pytest_leakcheck.report.html.view_model import XY, Arm, Chart, Curve, Page, Tone
from pytest_leakcheck.report.json_file import Document

TONES: Final[Mapping[str, Tone]] = {"green": "good", "yellow": "unsure", "red": "bad"}
_WORST: Final = ("red", "yellow", "green")
_LABEL: Final = 13
_TEXT: Final = 80 - _LABEL
_AGAIN: Final = "Write it again: pytest --leakcheck --leakcheck-json=FILE"
BY_COLLECTOR: Final = ", given back by the collector alone"
# A test under `leakcheck` is judged on a dozen resources; of those in order, so many are drawn.
_MOST_QUIET: Final = 2


class ReportError(ValueError):
    """A file that is no report of findings; the message names what is wrong with it."""


def page_of_findings(data: object, title: str) -> Page:
    """The page of a whole report.

    Args:
        data: The file's content, decoded.
        title: Of the page.

    Raises:
        ReportError: It is something else, of another version, or damaged.
    """
    if not isinstance(data, dict) or not isinstance(data.get("findings"), list):
        raise ReportError("no report of findings: write one with pytest --leakcheck --leakcheck-json=FILE")
    try:
        document = decode(Document, data)
        _check_resources(document)
    except DecodeError as error:
        raise ReportError(f"a damaged report: {error}. {_AGAIN}") from None
    recordings = {one.test: one for one in document.recordings}
    by_test = [(test, list(entries)) for test, entries in groupby(data["findings"], key=lambda one: one["test"])]
    arms = tuple(arm_of_test(test, entries, recordings.get(test)) for test, entries in by_test)
    partial = any(recording.stopped == "interrupted" for recording in recordings.values())
    return Page(title, (_count(arms),), arms, partial=partial)


def _check_resources(document: Document) -> None:
    for at, entry in enumerate(document.findings):
        try:
            find_resource(entry.resource)
        except KeyError:  # noqa: PERF203 - a finding at a time
            valid = f"one of {', '.join(RESOURCES)} or {GAUGE_PREFIX}NAME"
            raise DecodeError(f"findings[{at}].resource: expected {valid}, got {entry.resource!r}") from None


def arm_of_test(test: str, entries: Sequence[Mapping[str, Any]], recording: Recording | None) -> Arm:
    """One test.

    Args:
        test: Its node id.
        entries: Its findings, one per verdict, as in the JSON file.
        recording: Its readings, where there are any.
    """
    colours = {one["colour"] for one in entries}
    worst = next((colour for colour in _WORST if colour in colours), "green")
    culprit = next((one["culprit"] for one in entries if one["culprit"]), None)
    told = [one for one in entries if one["colour"] != "green"]
    quiet = [one for one in entries if one["colour"] == "green"][:_MOST_QUIET]
    charts = (chart_of_verdict(one, recording) for one in (*told, *quiet))
    return Arm(
        name=test,
        tone=TONES[worst],
        verdicts=tuple(map(verdict_line, entries)),
        culprit=culprit_text(decode(Culprit, culprit)) if culprit else "",
        charts=tuple(chart for chart in charts if chart is not None),
    )


def chart_of_verdict(entry: Mapping[str, Any], recording: Recording | None) -> Chart | None:
    """The readings that a verdict rests on; over an axis, the peaks. None where there are fewer than two."""
    resource = find_resource(entry["resource"])
    released = is_of_collector(entry)
    title = f"{entry['resource']}: {resource.plural}{BY_COLLECTOR if released else ''}"
    curve = curve_of(entry, recording, "", released=released)
    if curve is None:
        return None
    axis = "size" if entry["points"] else "iteration"
    return Chart(title, resource.unit, axis, (curve,), verdict_line(entry), limit_of(entry, recording))


def limit_of(entry: Mapping[str, Any], recording: Recording | None) -> int | None:
    """Where the curve of a verdict must end. What is held has a limit; what was given back, and sizes, have none."""
    if recording is None or entry["points"] or is_of_collector(entry):
        return None
    return recording.limits.get(entry["resource"])


def curve_of(
    entry: Mapping[str, Any], recording: Recording | None, name: str, *, released: bool = False
) -> Curve | None:
    """The series of one verdict, over an axis its peaks, under a name of its own, to be laid beside that of another arm.

    Args:
        entry: The finding.
        recording: Its readings.
        name: Of the curve.
        released: Draw what the collector has given back until each iteration, and not what is held.
    """
    if entry["points"]:
        peaks = tuple((float(one["size"]), float(one["peak"])) for one in entry["points"])
        return Curve(name, peaks, TONES[entry["colour"]])
    series = recording.find(entry["resource"]) if recording is not None else None
    if series is None or series.iterations < 1:
        return None
    readings = accumulate(series.released, initial=0) if released else series.readings
    points = tuple((float(at), float(value)) for at, value in enumerate(readings))
    return Curve(name, points, TONES[entry["colour"]], _line(points, entry))


def is_of_collector(entry: Mapping[str, Any]) -> bool:
    """Whether a verdict is about what the collector gave back, where what is held stands still."""
    return bool(entry["verdict"] == "unclosed")


def verdict_line(entry: Mapping[str, Any]) -> str:
    """One verdict in a line; an ``ok`` with what would have been caught."""
    unit = find_resource(entry["resource"]).unit
    said = f"{entry['resource']} {entry['verdict'].replace('_', ' ')}"
    if entry["reason"]:
        said += f": {entry['reason']}"
    if entry["verdict"] == "ok" and entry["floor"]:
        per = "size" if entry["points"] else "iteration"
        said += f"; would have caught {format_amount(entry['floor'], unit)} per {per}"
    elif entry["slope"] and format_rate(entry["slope"], unit) not in entry["reason"] and not entry["points"]:
        said += f" ({format_rate(entry['slope'], unit)})"
    return said


def culprit_text(culprit: Culprit) -> str:
    """The rows of the terminal's report, label before text."""
    return "\n".join(line for label, text in rows(culprit, _TEXT, UNICODE) for line in _wrapped(label, text))


def _wrapped(label: str, text: str) -> list[str]:
    if len(text) <= _TEXT:
        return [f"{label:<{_LABEL}}{text}".rstrip()]
    return wrap(text, 80, initial_indent=f"{label:<{_LABEL}}", subsequent_indent=" " * _LABEL)


def _line(points: Sequence[XY], entry: Mapping[str, Any]) -> tuple[XY, XY] | None:
    """The slope that was judged, over the half that it was judged on, ending where the readings end."""
    if not entry["slope"] or entry["verdict"] not in ("leak", "over_budget"):
        return None
    (x0, _y0), (x1, y1) = points[len(points) // 2], points[-1]
    return (x0, y1 - entry["slope"] * (x1 - x0)), (x1, y1)


def _count(arms: Sequence[Arm]) -> str:
    names: Mapping[Tone, str] = {"bad": "red", "unsure": "yellow", "good": "green"}
    counts = {name: sum(arm.tone == tone for arm in arms) for tone, name in names.items()}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "No test was measured."
