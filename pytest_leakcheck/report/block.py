"""One finding as the block that a person reads under a failed test: 80 columns, first line at most 60."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Final

from pytest_leakcheck.finding import Finding
from pytest_leakcheck.report.glyphs import Glyphs, shorten, sparkline
from pytest_leakcheck.resources import find_resource
from pytest_leakcheck.units import format_amount, format_rate
from pytest_leakcheck.verdict import Verdict

WIDTH: Final = 80
_HEADLINE: Final = 60
_LABEL: Final = 13
_MOST_HELD: Final = 9


def headline(finding: Finding, glyphs: Glyphs) -> str:
    """The one line that the short summary, JUnit and annotations show: number first, no class words."""
    verdict = finding.verdict
    budget = finding.budgets.get(verdict.resource, "")
    head = f"{verdict.resource} {_measure(verdict)}"
    if verdict.slope:
        head += f" {glyphs.times} {verdict.iterations}"
    if verdict.outcome in ("inconclusive", "unavailable"):
        return shorten_end(f"{verdict.resource} {verdict.outcome}: {verdict.reason}", glyphs)
    line = f"{head} (budget {budget})"
    held = finding.held.get(verdict.resource, ())
    if held:
        name = held[0].what.rpartition("/")[2]
        line += f" {glyphs.dash} {held[0].count} {glyphs.times} {name}"
    return shorten_end(line, glyphs)


def shorten_end(line: str, glyphs: Glyphs) -> str:
    return line if len(line) <= _HEADLINE else line[: _HEADLINE - 1] + glyphs.dots


def _measure(verdict: Verdict) -> str:
    unit = find_resource(verdict.resource).unit
    if verdict.outcome == "unclosed":
        return f"{format_rate(verdict.slope, unit)} unclosed"
    if verdict.outcome == "over_budget" and not verdict.slope:
        return f"+{format_amount(verdict.level, unit)}"
    return format_rate(verdict.slope, unit)


def block(finding: Finding, glyphs: Glyphs) -> str:
    """The whole report of one finding, without colour (it travels to JUnit and other readers)."""
    lines = [headline(finding, glyphs), ""]
    lines += [_line(label, text, glyphs) for label, text in _lines(finding, glyphs)]
    return "\n".join(lines)


def _line(label: str, text: str, glyphs: Glyphs) -> str:
    return f"  {label:<{_LABEL}}{shorten(text, WIDTH - 2 - _LABEL, glyphs)}".rstrip()


def _lines(finding: Finding, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    verdict = finding.verdict
    yield verdict.outcome.replace("_", " "), verdict.reason
    for one in finding.verdicts:
        yield from _course(finding, one, glyphs)
    for label, seen in zip(chain(["seen"], repeat("")), finding.seen, strict=False):
        unit = find_resource(seen.resource).unit
        grew = f"{format_rate(seen.slope, unit)}, +{format_amount(seen.level, unit)} so far"
        yield label, f"{seen.resource} {grew}; not judged"
    yield from _held(finding, glyphs)
    yield from _collector(finding)
    means = consequence(finding, verdict, glyphs)
    if means:
        yield "means", means
    if finding.reasons.get(verdict.resource):
        yield "budget", f"{finding.budgets[verdict.resource]}: {finding.reasons[verdict.resource]}"
    if verdict.advice:
        yield from _wrapped("advice", verdict.advice)
    yield "finding", finding.fingerprint
    yield "next", f'pytest --leakcheck "{finding.test}"'


def _course(finding: Finding, verdict: Verdict, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    series = finding.recording.find(verdict.resource)
    if series is None:
        yield verdict.resource, f"{verdict.outcome}: {verdict.reason}"
        return
    resource = find_resource(verdict.resource)
    x = series.readings
    course = f"{format_amount(x[0], resource.unit)} {glyphs.arrow} {format_amount(x[-1], resource.unit)}"
    if verdict.outcome == "unclosed":
        rate, note = format_rate(verdict.slope, resource.unit), "by the collector"
    elif verdict.outcome == "ok":
        rate, note = "within budget", f"would have seen {floor_text(verdict)}"
    else:
        rate = format_rate(verdict.slope, resource.unit) if verdict.slope else f"+{format_amount(verdict.level, resource.unit)}"
        note = "exact" if resource.scarce else verdict.outcome
    yield verdict.resource, f"{course:<19} {sparkline(x, glyphs)}  {rate}  {note}"


def floor_text(verdict: Verdict) -> str:
    """The detection floor in words: what this very run would have caught."""
    resource = find_resource(verdict.resource)
    if verdict.floor is None:
        return "nothing"
    if resource.scarce:
        return f"1 in {max(1, round(1 / verdict.floor))} iterations" if verdict.floor < 1 else "1/iter"
    return f">= {format_amount(verdict.floor, resource.unit)}/iter"


def _held(finding: Finding, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    verb = "released" if finding.verdict.outcome == "unclosed" else "held"
    for group in finding.held.values():
        for one in group[:_MOST_HELD]:
            yield verb, f"{one.count} {glyphs.times} {one.what}"
            verb = ""
        if len(group) > _MOST_HELD:
            yield "", f"and {len(group) - _MOST_HELD} kinds more"


def _collector(finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.recording.collector == "off":
        yield "collector", "off, by the program's own choice: cyclic garbage counts as retained"


def consequence(finding: Finding, verdict: Verdict, glyphs: Glyphs) -> str:
    """What the growth means in iterations of a run, where the limit is known; empty otherwise."""
    limit = finding.recording.limits.get(verdict.resource)
    series = finding.recording.find(verdict.resource)
    if limit is None or series is None or verdict.slope <= 0 or verdict.outcome not in ("leak", "unclosed"):
        return ""
    resource = find_resource(verdict.resource)
    left = max(0.0, (limit - series.readings[0]) / verdict.slope)
    shown = f"{limit:,} {resource.plural}" if resource.unit == "count" else format_amount(limit, resource.unit)
    when = f"this process reaches {shown} after {glyphs.about} {left:,.0f} iterations"
    return f"where nothing collects, {when}" if verdict.outcome == "unclosed" else when


def _wrapped(label: str, text: str) -> Iterator[tuple[str, str]]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > WIDTH - 2 - _LABEL:
            yield label, line
            label, line = "", word
        else:
            line = f"{line} {word}".strip()
    yield label, line
