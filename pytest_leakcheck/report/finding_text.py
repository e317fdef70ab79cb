"""Render a finding as the text under a failed test: 80 columns wide, except for the first line and the command."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import CHILDREN, GAUGE_PREFIX, RESIDENT, find_resource
from pytest_leakcheck.model.units import format_amount, format_count, format_rate
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report import culprit_text
from pytest_leakcheck.report.glyphs import Row, printable, shorten, sparkline, truncate, under, with_kind

# How a part of a line is shown: the verdict, a label, the command to copy, a line of the program's source, or plain.
Style: TypeAlias = Literal["verdict", "label", "command", "source", "plain"]
Line: TypeAlias = tuple[tuple[str, Style], ...]

WIDTH: Final = 80
# Columns of the label of a row, after an indent of 2.
_LABEL_WIDTH: Final = 13
_TEXT_WIDTH: Final = WIDTH - 2 - _LABEL_WIDTH
_MAX_HELD_KINDS: Final = 9
# A limit that the process reaches after more iterations than this is not mentioned, because no run lasts that long.
_MAX_ITERATIONS_TO_LIMIT: Final = 10_000_000


def headline(finding: Finding, width: int = WIDTH) -> str:
    """Return the line for pytest's short summary, JUnit XML and annotations.

    A text longer than `width` columns loses the part in parentheses, the call or both, but never the line to change. A
    text without a line to change is cut at its end.
    """
    verdict = finding.verdict
    # A test that was lost, or does not repeat, says nothing of the resource that would have been judged first.
    stopped = finding.recording.stopped
    if stopped == "lost" or (stopped == "failed" and verdict.outcome == "inconclusive"):
        return truncate(verdict.reason, width)
    if finding.scaled is not None:
        from pytest_leakcheck.report import scaling_text

        return truncate(scaling_text.headline(finding), width)
    name = with_kind(verdict.resource, verdict.kind)
    if verdict.outcome in ("inconclusive", "unavailable"):
        return truncate(f"{name} {verdict.outcome}: {verdict.reason}", width)
    note = _format_note(finding, verdict)
    if verdict.outcome == "ok":
        return truncate(f"{name} ok{note}", width)
    peak = f"peak +{format_amount(verdict.level, verdict.traits.unit)}" if verdict.peak else ""
    growth = f"{name} {peak or _format_growth(verdict)}{' unclosed' if verdict.outcome == 'unclosed' else ''}"
    place, call = culprit_text.headline(finding.culprit) if finding.culprit is not None else ("", "")
    if not place:
        place = _format_held(finding.held.get(verdict.resource, ()), width - len(growth) - 3)
    if not place:
        return truncate(growth + note, width)
    line = f"{growth} — {place}"
    with_call = f"{line} {call}".rstrip()
    return next((text for text in (with_call + note, with_call, line + note) if len(text) <= width), line)


def _format_note(finding: Finding, verdict: Verdict) -> str:
    """Format the number of iterations, and the budget unless it allows nothing."""
    budget = finding.budgets.get(verdict.resource, "")
    parts = [format_count(verdict.iterations, "iteration")] if verdict.slope or verdict.outcome == "ok" else []
    if budget not in ("", "0", "0 B", "no growth"):
        parts.append(f"budget {budget}")
    return f" ({', '.join(parts)})" if parts else ""


def _format_held(held: Sequence[Held], width: int) -> str:
    """Name the first kind of survivors (retained objects or handles), and the number of other kinds."""
    if not held:
        return ""
    more = f" + {len(held) - 1} more" if len(held) > 1 else ""
    text = f"{held[0].count} × {held[0].what.rpartition('/')[2]}"
    return truncate(text, max(0, width - len(more))) + more


def _format_growth(verdict: Verdict) -> str:
    """Format the rate; of a resource that only rose once, the amount."""
    if verdict.slope or verdict.outcome not in ("over_budget", "inconclusive"):
        return format_rate(verdict.slope, verdict.traits.unit)
    return f"+{format_amount(verdict.level, verdict.traits.unit)}"


def block(finding: Finding, width: int = WIDTH, command: str = "") -> str:
    """Return the report of one finding as plain text, for readers such as JUnit XML."""
    return plain(styled_lines(finding, width, command))


def plain(lines: Iterable[Line]) -> str:
    """Return lines without their styles."""
    return "\n".join("".join(text for text, _style in line) for line in lines)


def styled_lines(finding: Finding, width: int = WIDTH, command: str = "") -> Iterator[Line]:
    """Yield the lines of the report of one finding.

    The first line has `width` columns, the others at most 80, except for the `command` to run next (empty for none).
    """
    yield _line((headline(finding, width), "verdict"))
    yield ()
    for group, rows in groups_of(finding).items():
        for label, text in rows:
            if group == "path":
                yield _line((_indent("") + label, "plain"), (text and culprit_text.ARROW + text, "verdict"))
            elif group == "origin" and text.startswith(culprit_text.SOURCE_INDENT):
                yield from _wrap(label, text, "source")
            else:
                yield from _wrap(label, text, "verdict" if group == "verdict" else "plain")
    # The command is never cut or wrapped, so that users can copy it.
    if command:
        yield _line((_indent("next"), "label"), (command, "command"))
    elif "::" not in finding.test:
        # Not a node id, but the name of a measurement in a script.
        yield _line((_indent("measured"), "label"), (finding.test, "plain"))


def groups_of(finding: Finding, width: int = _TEXT_WIDTH) -> dict[str, list[Row]]:
    """Return the rows of a finding by group, in the order of the terminal.

    The group ``path`` has references and their notes in place of labels and texts. Lines of source and paths are
    shortened to `width`.
    """
    verdict, culprit = finding.verdict, finding.culprit
    groups: dict[str, Iterable[Row]] = {
        "verdict": [(verdict.outcome.replace("_", " "), with_kind(verdict.reason, verdict.kind))],
        "series": _series_rows(finding),
        "held": _held_rows(finding),
    }
    if culprit is not None:
        groups["origin"] = culprit_text.origin_rows(culprit, width)
        groups["holder"] = culprit_text.holder_rows(culprit)
        groups["path"] = culprit_text.references(culprit, width)
        groups["hint"] = [("hint", culprit.hint)] if culprit.hint else []
    groups["means"] = [("means", text)] if (text := consequence(finding)) else []
    groups["settings"] = _setting_rows(finding)
    groups["advice"] = _advice_rows(finding)
    groups["finding"] = [("finding", finding.fingerprint)]
    return {name: list(rows) for name, rows in groups.items()}


def _wrap(label: str, text: str, style: Style) -> Iterator[Line]:
    for at, piece in enumerate(textwrap.wrap(text, _TEXT_WIDTH, break_on_hyphens=False) or [""]):
        begin = _indent("" if at else label)
        yield _line((begin if piece else begin.rstrip(), "verdict" if style == "verdict" else "label"), (piece, style))


def _indent(label: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}"


def _line(*parts: tuple[str, Style]) -> Line:
    return tuple((printable(text), style) for text, style in parts if text)


def _series_rows(finding: Finding) -> Iterator[Row]:
    """Yield the course of each judged resource, what grew as well, and the phases."""
    verdict, recording = finding.verdict, finding.recording
    shown = finding.verdicts if recording.stopped != "lost" and finding.scaled is None else ()
    # If the finding is not ok, its ok verdicts share one row: a failing one could otherwise be the last of a dozen.
    also_ok = {one.resource: one.kind for one in shown if one.outcome == "ok" and verdict.outcome != "ok"}
    if finding.scaled is not None:
        from pytest_leakcheck.report import scaling_text

        yield from scaling_text.rows(finding)
    for one in shown:
        if one.resource not in also_ok:
            yield one.resource, with_kind(one.reason, one.kind) if one.peak else _format_series(finding, one)
    if also_ok:
        yield "also ok", ", ".join(with_kind(name, kind) for name, kind in also_ok.items())
    grew = []
    for seen in finding.seen:
        unit = find_resource(seen.resource).unit
        text = (
            f"{seen.resource} {format_rate(seen.slope, unit)}, +{format_amount(seen.level, unit)} so far (not judged)"
        )
        grew.append(with_kind(text, recording.kind(seen.resource)))
    yield from under("also growing", grew)
    phases = []
    for phase in recording.phases if verdict.outcome != "ok" else ():
        # The amount that a phase (a part of an iteration) adds to the resource of the worst verdict.
        if (amount := phase.amounts.get(verdict.resource)) is not None:
            text = f"{verdict.resource} {'+' if amount >= 0 else ''}{format_amount(amount, verdict.traits.unit)}"
            phases.append(f"{phase.label}: {with_kind(text, verdict.kind)}")
    yield from under("phases", phases)


def _setting_rows(finding: Finding) -> Iterator[Row]:
    """Yield whether the garbage collector was off, and the reason that was given for the budget."""
    if finding.recording.collector == "off":
        yield "collector", "disabled by the program: cyclic garbage counts as retained"
    resource = finding.verdict.resource
    if finding.reasons.get(resource):
        yield "budget", f"{finding.budgets[resource]}: {finding.reasons[resource]}"


def _advice_rows(finding: Finding) -> Iterator[Row]:
    if finding.verdict.advice:
        yield "advice", finding.verdict.advice
    if finding.third_party:
        yield "third party", finding.third_party
    snapshot = [f"{finding.snapshot}: open it at pytorch.org/memory_viz"] if finding.snapshot else []
    if finding.snapshot_error:
        what = "it lacks the history of allocations" if snapshot else "not written"
        snapshot.append(f"{what}: {finding.snapshot_error}")
    yield from under("snapshot", snapshot)


def _format_series(finding: Finding, verdict: Verdict) -> str:
    series = finding.recording.find(verdict.resource)
    if series is None:
        return with_kind(f"{verdict.outcome}: {verdict.reason}", verdict.kind)
    resource = verdict.traits
    x = series.readings
    course = f"{format_amount(x[0], resource.unit)} → {format_amount(x[-1], resource.unit)}"
    if verdict.outcome == "ok":
        floor = floor_text(verdict)
        kind = "" if verdict.kind == "measured" else f", {verdict.kind}"
        return f"{course:<19} within budget{kind}" + (f"; would have caught {floor}" if floor else "")
    note = "released by GC" if verdict.outcome == "unclosed" else "exact" if resource.scarce else ""
    note = note if series.kind == "measured" else series.kind
    if verdict.outcome == "inconclusive" and verdict is not finding.verdict:
        note = "(not decided)"
    return f"{course:<19} {sparkline(x)}  {_format_growth(verdict)}  {note}".rstrip()


def floor_text(verdict: Verdict, per: str = "iter") -> str:
    """Format the detection floor: the least growth that this run would have caught, per iteration or axis unit."""
    resource = verdict.traits
    if verdict.floor is None:
        return ""
    if resource.scarce and resource.unit == "count" and per == "iter":
        return f"1 in {round(1 / verdict.floor)} iter" if verdict.floor < 1 else f"{verdict.floor:.1f}/iter"
    return f"{format_amount(verdict.floor, resource.unit)}/{per}"


def floors_text(findings: Sequence[Finding]) -> str:
    """Format the weakest (highest) detection floor of each resource, per iteration or per unit of an axis.

    Of a resource that an ``ok`` has not counted in full, none is stated (`uncounted`).
    """
    weakest: dict[tuple[str, str], Verdict] = {}
    silent = {resource for resource, _reason in uncounted(findings)}
    for finding in findings:
        for verdict in finding.verdicts:
            kind = (verdict.resource, per(finding))
            known = weakest.get(kind)
            if verdict.floor is None or verdict.resource in silent:
                continue
            if known is None or verdict.floor > (known.floor or 0):
                weakest[kind] = verdict
    # Resources with the same floor are listed together, because most exactly counted resources have the same one.
    names: dict[str, list[str]] = {}
    for (resource, one), verdict in weakest.items():
        names.setdefault(floor_text(verdict, one), []).append(
            with_kind(resource.removeprefix(GAUGE_PREFIX), verdict.kind)
        )
    return "; ".join(f"{', '.join(resources)} {floor}" for floor, resources in names.items())


def uncounted(findings: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Group findings by resource and reason of each ``ok`` that says what it has not counted, and has no floor."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        for one in finding.verdicts:
            if one.outcome == "ok" and one.floor is None and one.reason and not one.peak and one.law is None:
                groups.setdefault((one.resource, one.reason), []).append(finding)
    return groups


def green_lines(finding: Finding) -> Iterator[str]:
    """Yield what the run of a green test would have caught, and what its verdicts say."""
    if floors := floors_text([finding]):
        yield f"would have caught {floors}"
    yield from (f"{with_kind(one.resource, one.kind)}: {one.reason}" for one in finding.verdicts if one.reason)


def per(finding: Finding) -> str:
    """Return what the slopes and floors of a finding are divided by: ``iter``, or one unit of its axis."""
    if finding.scaled is None:
        return "iter"
    from pytest_leakcheck.config.bounds import singular

    return singular(finding.scaled.axis)


def _held_rows(finding: Finding) -> Iterator[Row]:
    """Yield what survived the iterations."""
    texts = []
    for resource, group in finding.held.items():
        span = _format_span(finding, resource)
        for one in group[:_MAX_HELD_KINDS]:
            count, note = f"{one.count} × ", span + (f", {one.note}" if one.note else "")
            span = ""
            room = _TEXT_WIDTH - len(count) - len(note)
            # A long note is wrapped to the next line, so the path may fill its own line.
            room = room if room > _TEXT_WIDTH // 2 else _TEXT_WIDTH - len(count)
            texts.append(count + _shorten_path(one.what, room) + note)
        if len(group) > _MAX_HELD_KINDS:
            texts.append(f"and {len(group) - _MAX_HELD_KINDS} more kinds")
    yield from under("released" if finding.verdict.outcome == "unclosed" else "remaining", texts)


def _format_span(finding: Finding, resource: str) -> str:
    """Return the iterations that the survivors are from; their owner also has entries of warm-up and diagnosis."""
    series = finding.recording.find(resource)
    leaks = any(one.resource == resource and one.outcome == "leak" for one in finding.verdicts)
    if series is None or not leaks or not find_resource(resource).handles:
        return ""
    return f" from {format_count(series.iterations, 'iteration')}"


def _shorten_path(what: str, width: int) -> str:
    """Shorten a text to `width`: keep the end of a path, and both ends of any other text."""
    if len(what) <= width:
        return what
    if what.startswith("/"):
        tail = what[-(width - 1) :]
        return "…" + (tail[tail.index("/") :] if "/" in tail else tail)
    return shorten(what, width)


def consequence(finding: Finding) -> str:
    """State after how many iterations the process reaches its limit; empty if no limit applies or it is far away."""
    verdict = finding.verdict
    limit = finding.recording.limits.get(verdict.resource)
    series = finding.recording.find(verdict.resource)
    if limit is None or series is None or verdict.slope <= 0 or verdict.outcome not in ("leak", "unclosed"):
        return ""
    children = finding.recording.find(CHILDREN)
    of_tree = verdict.traits.of_tree or (verdict.resource == RESIDENT and verdict.explicit)
    if of_tree and children is not None and any(children.readings):
        # The counter covers the whole process tree, but the limit applies to each process separately.
        return ""
    resource = verdict.traits
    # The number of iterations includes the warm-up. What the warm-up retained is part of the first reading.
    at = finding.recording.warmup + max(0.0, (limit - series.readings[0]) / verdict.slope)
    if at > _MAX_ITERATIONS_TO_LIMIT:
        return ""
    shown = f"{limit:,} {resource.plural}" if resource.unit == "count" else format_amount(limit, resource.unit)
    when = f"this process reaches its limit of {shown}{resource.limit} after ≈ {at:,.0f} iterations"
    return with_kind(f"without garbage collection, {when}" if verdict.outcome == "unclosed" else when, verdict.kind)
