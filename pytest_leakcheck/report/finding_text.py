"""Render a finding as text under a failed test: 80 columns, except the first line and command."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.culprit import (
    AWAIT,
    CreationPath,
    Culprit,
    Fault,
    Owner,
    Remainder,
    Site,
    Step,
    TestPhase,
    is_standard,
)
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Fullest, Point, Scaled, peaks_of
from pytest_leakcheck.model.resources import CHILDREN, GAUGE_PREFIX, RESIDENT, find_resource
from pytest_leakcheck.model.units import format_amount, format_count, format_rate, singular
from pytest_leakcheck.report.glyphs import (
    LEVELS,
    Row,
    printable,
    shorten,
    sparkline,
    truncate,
    under,
    with_kind,
)

# How a part of a line is shown: the verdict, a label, the command to copy, a line of the program's
# source, or plain.
Style: TypeAlias = Literal["verdict", "label", "command", "source", "plain"]
Line: TypeAlias = tuple[tuple[str, Style], ...]

WIDTH: Final = 80
# Columns of the label of a row, after an indent of 2.
_LABEL_WIDTH: Final = 13
_TEXT_WIDTH: Final = WIDTH - 2 - _LABEL_WIDTH
_MAX_HELD_KINDS: Final = 9
# A limit that the process reaches after more iterations than this is not mentioned, because no run
# lasts that long.
_MAX_ITERATIONS_TO_LIMIT: Final = 10_000_000
_PHASE_NAMES: Final[dict[TestPhase, str]] = {
    "setup": "set-up",
    "call": "during the test",
    "teardown": "tear-down",
}
# A `Step.via` with one of these prefixes refers to an entry of a container, not to an attribute or
# a variable.
_ENTRY_PREFIXES: Final = ("[", "key ", "element", "cache")
# Precedes the note on a reference.
ARROW: Final = "   <- "
# A text of a row that begins with this is a line of source.
SOURCE_INDENT: Final = "  "
# A reference path with more steps than this is shown without its middle.
_MAX_STEPS: Final = 8
_MAX_CALLERS: Final = 2
_MAX_BAR_WIDTH: Final = 24
# Columns next to a bar for the amounts of the ranks (the processes or threads that run the test
# together).
_MAX_RANKS_WIDTH: Final = 24
# Almost any exponent fits three sizes, so the exponent of a law is shown only for more sizes than
# this.
_TOO_FEW_SIZES: Final = 3


def headline(finding: Finding, width: int = WIDTH) -> str:
    """Return the line for pytest's short summary, JUnit XML and annotations.

    A text longer than `width` columns loses the part in parentheses, the call or both, but never
    the line to change. A text without a line to change is cut at its end.
    """
    verdict = finding.verdict
    # A test that was lost, or does not repeat, says nothing of the resource that would have been
    # judged first.
    stopped = finding.recording.stopped
    if stopped == "lost" or (stopped == "failed" and verdict.outcome == "inconclusive"):
        return truncate(": ".join(filter(None, (_if_raised(finding), verdict.reason))), width)
    if finding.scaled is not None:
        return truncate(_headline_of_scaling(finding, finding.scaled), width)
    name = with_kind(verdict.resource, verdict.kind)
    if verdict.outcome in ("inconclusive", "unavailable"):
        return truncate(f"{name} {verdict.outcome}: {verdict.reason}", width)
    note = (
        f" {_if_raised(finding)}" if finding.fault is not None else _format_note(finding, verdict)
    )
    if verdict.outcome == "ok":
        return truncate(f"{name} ok{note}", width)
    peak = f"peak +{format_amount(verdict.level, verdict.traits.unit)}" if verdict.peak else ""
    growth = f"{name} {peak or _format_growth(verdict)}{' unclosed' if verdict.outcome == 'unclosed' else ''}"
    place, call = headline_of_culprit(finding.culprit) if finding.culprit is not None else ("", "")
    if not place:
        place = _format_held(finding.held.get(verdict.resource, ()), width - len(growth) - 3)
    if not place:
        return truncate(growth + note, width)
    line = f"{growth} — {place}"
    with_call = f"{line} {call}".rstrip()
    texts = (with_call + note, with_call, line + note)
    # On a failing path, what raises says more than the call.
    texts = texts if finding.fault is None else (texts[0], texts[2], texts[1])
    return next((text for text in texts if len(text) <= width), line)


def _if_raised(finding: Finding) -> str:
    """Return which call raises, and where, as a part of a sentence; empty of the test as it is."""
    fault = finding.fault
    if fault is None:
        return ""
    item = "item" if fault.iterator else "call"
    number = "" if fault.number == 1 else f", {item} {fault.number}"
    return f"if {_what_fails(fault)} at {PurePath(fault.site.file).name}:{fault.site.line}{number}"


def fault_text(fault: Fault) -> str:
    """Return which call raises an exception in each iteration."""
    which = f"at call {fault.number} from"
    if fault.function == AWAIT:
        which = f"at wait {fault.number} of"
    elif fault.iterator:
        which = f"after item {fault.number} at"
    return f"{_what_fails(fault)} {which} {_format_site(fault.site)}"


def _what_fails(fault: Fault) -> str:
    if fault.iterator:
        return f"{fault.iterator} is dropped"
    return "its task is cancelled" if fault.function == AWAIT else f"{fault.function} raises"


def _format_note(finding: Finding, verdict: Verdict) -> str:
    """Format the number of iterations, and the budget unless it allows nothing."""
    budget = finding.budgets.get(verdict.resource, "")
    parts = (
        [format_count(verdict.iterations, "iteration")]
        if verdict.slope or verdict.outcome == "ok"
        else []
    )
    if verdict.explicit and budget not in ("", "0", "0 B", "no growth"):
        parts.append(f"budget {budget}")
    return f" ({', '.join(parts)})" if parts else ""


def _format_held(held: Sequence[Remainder], width: int) -> str:
    """Name the first kind of survivors (retained objects or handles), and count other kinds."""
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


def row(label: str, text: str) -> str:
    """Return a row as in the report of a finding, as plain text."""
    return plain(_wrap(label, text, "plain", _TEXT_WIDTH))


def styled_lines(finding: Finding, width: int = WIDTH, command: str = "") -> Iterator[Line]:
    """Yield the lines of the report of one finding.

    They have at most `width` columns, those after the first at least 80; except for the `command`
    to run next (empty for none), and for a name that is longer.
    """
    room = max(width, WIDTH) - 2 - _LABEL_WIDTH
    yield _line((headline(finding, width), "verdict"))
    yield ()
    for group, rows in groups_of(finding, room).items():
        for label, text in rows:
            if group == "path":
                yield _line((_indent("") + label, "plain"), (text and ARROW + text, "verdict"))
            elif group == "origin" and text.startswith(SOURCE_INDENT):
                yield from _wrap(label, text, "source", room)
            else:
                yield from _wrap(label, text, "verdict" if group == "verdict" else "plain", room)
    # The command is never cut or wrapped, so that users can copy it.
    if command:
        yield _line((_indent("next"), "label"), (command, "command"))
    elif "::" not in finding.test:
        # Not a node id, but the name of a measurement in a script.
        yield _line((_indent("measured"), "label"), (finding.test, "plain"))


def still_held(what: str, owner: Owner | None, reason: str) -> str:
    """Return the report on an uncollected object: its holder and path, or why that is unknown."""
    name = owner.name or owner.root if owner is not None else ""
    path = [text + (note and ARROW + note) for text, note in references(owner, _TEXT_WIDTH)]
    there = "drop the marked reference, or make it a weak one (weakref)"
    unseen = "end the loop or the call, or close what an extension was given"
    lines: list[Line] = [
        _line((f"{what} is not collected: {f'held by {name}' if name else reason}", "verdict")),
        (),
        *(_line((_indent(label) + text, "plain")) for label, text in under("held by", path)),
        _line((_indent("advice") + (there if name else unseen), "plain")),
    ]
    return plain(lines)


def groups_of(finding: Finding, width: int = _TEXT_WIDTH) -> dict[str, list[Row]]:
    """Return the rows of a finding by group, in the order of the terminal.

    The group ``path`` has references and their notes in place of labels and texts. Lines of source
    and paths are shortened to `width`.
    """
    verdict, culprit = finding.verdict, finding.culprit
    settings: list[Row] = []
    groups: dict[str, Iterable[Row]] = {
        "verdict": [
            (verdict.outcome.replace("_", " "), with_kind(verdict.reason, verdict.kind)),
            *([("if", fault_text(finding.fault))] if finding.fault is not None else []),
        ],
        "series": _series_rows(finding),
        "held": _held_rows(finding, width),
    }
    if culprit is not None:
        groups["origin"] = origin_rows(culprit, width)
        groups["holder"] = holder_rows(culprit)
        groups["path"] = references(culprit.owner, width)
        groups["hint"] = [("hint", culprit.hint)] if culprit.hint else []
    groups["means"] = [("means", text)] if (text := consequence(finding)) else []
    groups["settings"] = settings
    if finding.recording.collector == "off":
        settings.append(("collector", "disabled by the program: cyclic garbage counts as retained"))
    if reason := finding.reasons.get(verdict.resource):
        settings.append(("budget", f"{finding.budgets[verdict.resource]}: {reason}"))
    groups["advice"] = _advice_rows(finding)
    groups["finding"] = [("finding", finding.fingerprint)]
    return {name: list(rows) for name, rows in groups.items()}


def _wrap(label: str, text: str, style: Style, room: int) -> Iterator[Line]:
    # A name is never broken, so that users can copy it.
    pieces = textwrap.wrap(text, room, break_on_hyphens=False, break_long_words=False)
    for at, piece in enumerate(pieces or [""]):
        begin = _indent("" if at else label)
        yield _line(
            (begin if piece else begin.rstrip(), "verdict" if style == "verdict" else "label"),
            (piece, style),
        )


def _indent(label: str) -> str:
    return f"  {label:<{_LABEL_WIDTH - 1}} "


def _line(*parts: tuple[str, Style]) -> Line:
    return tuple((printable(text), style) for text, style in parts if text)


def _series_rows(finding: Finding) -> Iterator[Row]:
    """Yield the course of each judged resource, what grew as well, and the phases."""
    verdict, recording = finding.verdict, finding.recording
    shown = finding.verdicts if recording.stopped != "lost" and finding.scaled is None else ()
    # If the finding is not ok, its ok verdicts share one row: a failing one could otherwise be the
    # last of a dozen.
    also_ok = {
        judged.resource: judged.kind
        for judged in shown
        if judged.outcome == "ok" and verdict.outcome != "ok"
    }
    if finding.scaled is not None and finding.scaled.points:
        yield from _scaling_rows(finding, finding.scaled)
    for judged in shown:
        if judged.resource not in also_ok:
            yield (
                judged.resource,
                with_kind(judged.reason, judged.kind)
                if judged.peak
                else _format_series(finding, judged),
            )
    if also_ok:
        yield "also ok", ", ".join(with_kind(name, kind) for name, kind in also_ok.items())
    grew = []
    for seen in finding.seen:
        unit = find_resource(seen.resource).unit
        rate, level = format_rate(seen.slope, unit), format_amount(seen.level, unit)
        text = f"{seen.resource} {rate}, +{level} so far (not judged)"
        grew.append(with_kind(text, recording.kind(seen.resource)))
    yield from under("also growing", grew)
    phases = []
    for phase in recording.phases if verdict.outcome != "ok" else ():
        # The amount that a phase (a part of an iteration) adds to the resource of the worst
        # verdict.
        if (amount := phase.amounts.get(verdict.resource)) is not None:
            text = f"{verdict.resource} {'+' if amount >= 0 else ''}{format_amount(amount, verdict.traits.unit)}"
            phases.append(f"{phase.label}: {with_kind(text, verdict.kind)}")
    yield from under("phases", phases)


def _advice_rows(finding: Finding) -> Iterator[Row]:
    if finding.verdict.advice:
        yield "advice", finding.verdict.advice
    if finding.third_party:
        yield "third party", finding.third_party
    snapshot = (
        [f"{finding.snapshot}: open it at pytorch.org/memory_viz"] if finding.snapshot else []
    )
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
        return f"{course:<19} within budget{kind}" + (
            f"; would have caught {floor}" if floor else ""
        )
    note = "released by GC" if verdict.outcome == "unclosed" else "exact" if resource.scarce else ""
    note = note if series.kind == "measured" else series.kind
    if verdict.outcome == "inconclusive" and verdict is not finding.verdict:
        note = "(not decided)"
    return f"{course:<19} {sparkline(x)}  {_format_growth(verdict)}  {note}".rstrip()


def floor_text(verdict: Verdict, per: str = "iter") -> str:
    """Format the detection floor, the least growth that this run would have caught, `per` unit."""
    resource = verdict.traits
    if verdict.floor is None:
        return ""
    if resource.scarce and resource.unit == "count" and per == "iter":
        return (
            f"1 in {round(1 / verdict.floor)} iter"
            if verdict.floor < 1
            else f"{verdict.floor:.1f}/iter"
        )
    return f"{format_amount(verdict.floor, resource.unit)}/{per}"


def floors_text(findings: Sequence[Finding]) -> str:
    """Format the weakest (highest) detection floor of each resource, per iteration or axis unit.

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
    # Resources with the same floor are listed together, because most exactly counted resources have
    # the same one.
    names: dict[str, list[str]] = {}
    for (resource, unit), verdict in weakest.items():
        name = with_kind(resource.removeprefix(GAUGE_PREFIX), verdict.kind)
        names.setdefault(floor_text(verdict, unit), []).append(name)
    return "; ".join(f"{', '.join(resources)} {floor}" for floor, resources in names.items())


def uncounted(findings: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Group findings by resource and reason of each ``ok`` without a floor or a full count."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        for verdict in finding.verdicts:
            if (
                verdict.outcome == "ok"
                and verdict.floor is None
                and verdict.reason
                and not verdict.peak
                and verdict.law is None
            ):
                groups.setdefault((verdict.resource, verdict.reason), []).append(finding)
    return groups


def green_lines(finding: Finding) -> Iterator[str]:
    """Yield what the run of a green test would have caught, and what its verdicts say."""
    if floors := floors_text([finding]):
        yield f"would have caught {floors}"
    yield from (
        f"{with_kind(verdict.resource, verdict.kind)}: {verdict.reason}"
        for verdict in finding.verdicts
        if verdict.reason
    )


def per(finding: Finding) -> str:
    """Return what a finding's slopes and floors are divided by: ``iter``, or a unit of its axis."""
    if finding.scaled is None:
        return "iter"
    return singular(finding.scaled.axis)


def _held_rows(finding: Finding, width: int) -> Iterator[Row]:
    texts = []
    for resource, group in finding.held.items():
        span = _format_span(finding, resource)
        for kind in group[:_MAX_HELD_KINDS]:
            count, note = f"{kind.count} × ", span + (f", {kind.note}" if kind.note else "")
            span = ""
            room = width - len(count) - len(note)
            # A long note is wrapped to the next line, so the path may fill its own line.
            room = room if room > width // 2 else width - len(count)
            texts.append(count + shorten(kind.what, room) + note)
        if len(group) > _MAX_HELD_KINDS:
            texts.append(f"and {len(group) - _MAX_HELD_KINDS} more kinds")
    yield from under("released" if finding.verdict.outcome == "unclosed" else "remaining", texts)


def _format_span(finding: Finding, resource: str) -> str:
    """Return the survivors' iterations; their owner also has entries of warm-up and diagnosis."""
    series = finding.recording.find(resource)
    leaks = any(one.resource == resource and one.outcome == "leak" for one in finding.verdicts)
    if series is None or not leaks or not find_resource(resource).handles:
        return ""
    return f" from {format_count(series.iterations, 'iteration')}"


def limit_ahead(finding: Finding) -> tuple[float, int] | None:
    """Return the iterations, with warm-up, up to the limit, and the limit; None if far away."""
    verdict = finding.verdict
    limit = finding.recording.limits.get(verdict.resource)
    series = finding.recording.find(verdict.resource)
    if (
        limit is None
        or series is None
        or verdict.slope <= 0
        or verdict.outcome not in ("leak", "unclosed")
    ):
        return None
    children = finding.recording.find(CHILDREN)
    of_tree = verdict.traits.of_tree or (verdict.resource == RESIDENT and verdict.explicit)
    if of_tree and children is not None and any(children.readings):
        # The counter covers the whole process tree, but the limit applies to each process
        # separately.
        return None
    # What the warm-up retained is part of the first reading.
    return _reach(finding, limit, series.readings[0], verdict.slope)


def _reach(finding: Finding, limit: int, start: int, rate: float) -> tuple[float, int] | None:
    at = finding.recording.warmup + max(0.0, (limit - start) / rate)
    return (at, limit) if at <= _MAX_ITERATIONS_TO_LIMIT else None


def _limit_ahead_of(fullest: Fullest, finding: Finding) -> tuple[float, int] | None:
    """As `limit_ahead`, of a child process whose share of the growth is that of what it gained."""
    verdict = finding.verdict
    limit = finding.recording.limits.get(verdict.resource)
    if limit is None or verdict.slope <= 0:
        return None
    return _reach(
        finding, limit, fullest.held - fullest.gained, verdict.slope * fullest.gained / fullest.of
    )


def consequence(finding: Finding) -> str:
    """State after how many iterations the process reaches its limit; empty if none is near."""
    ahead, process, fullest = limit_ahead(finding), "this process", finding.recording.fullest
    if fullest is not None:
        ahead = _limit_ahead_of(fullest, finding)
        process = f"{fullest.process}, which has gained {fullest.gained:,} of {fullest.of:,},"
    if ahead is None:
        return ""
    (at, limit), verdict = ahead, finding.verdict
    resource = verdict.traits
    shown = (
        f"{limit:,} {resource.plural}"
        if resource.unit == "count"
        else format_amount(limit, resource.unit)
    )
    when = f"{process} reaches its limit of {shown}{resource.limit} after ≈ {at:,.0f} iterations"
    return with_kind(
        f"without garbage collection, {when}" if verdict.outcome == "unclosed" else when,
        verdict.kind,
    )


def origin_rows(culprit: Culprit, width: int) -> Iterator[Row]:
    """Yield the rows on where the resource is created and stored, and where it ran out."""
    yield from _made_rows(culprit, width)
    if culprit.native:
        yield "in C", " → ".join(reversed(culprit.native))
    for label, site in (("kept", culprit.kept), ("ran out", culprit.ran_out)):
        if site is not None:
            yield label, _format_site(site)
    if culprit.cycle:
        yield "cycle", cycle_text(culprit)


def holder_rows(culprit: Culprit) -> Iterator[Row]:
    """Yield a row with the name of the owner, or why it is unknown."""
    if culprit.owner is not None:
        # Never shortened: readers search the source for this name.
        all_owners = (culprit.owner, *culprit.others)
        shares = [
            f" (+{owner.gained:.1f}/iter)" if culprit.others and owner.gained else ""
            for owner in all_owners
        ]
        names = [
            (owner.name or owner.root) + share
            for owner, share in zip(all_owners, shares, strict=True)
        ]
        yield from under("held by", [names[0], *(f"and {name}" for name in names[1:])])
    elif "owner" in culprit.unresolved and culprit.unresolved["owner"] != culprit.unresolved.get(
        "site"
    ):
        yield "held by", f"not resolved: {culprit.unresolved['owner']}"


def headline_of_culprit(culprit: Culprit) -> tuple[str, str]:
    """Return the line to change as ``file:line``, and what it calls, or else its function.

    If the line is unknown, the first text names the owner, and the second is empty. Without an
    owner, both are empty.
    """
    site, owner = culprit.site, culprit.owner
    if site is None:
        return (f"held by {owner.name or owner.root}" if owner is not None else ""), ""
    file = PurePath(site.file)
    # Any package has a file of this name.
    name = "/".join(file.parts[-2:]) if file.name == "__init__.py" else file.name
    return f"{name}:{site.line}", site.call or _format_function(site)


def place(site: Site) -> str:
    """Return ``file:line`` relative to the current folder, or with the parent if elsewhere."""
    file = PurePath(site.file)
    try:
        shown = file.relative_to(Path.cwd())
    except (ValueError, OSError):
        shown = PurePath(*file.parts[-2:])
    return f"{shown}:{site.line}"


def cycle_text(culprit: Culprit) -> str:
    """Format the types in a reference cycle, the first one also at the end; empty without one."""
    return " → ".join((*culprit.cycle, *culprit.cycle[:1]))


def _format_site(site: Site) -> str:
    return f"{place(site)} in {_format_function(site)}"


def _format_function(site: Site) -> str:
    return site.function if site.function.startswith("<") else f"{site.function}()"


def _made_rows(culprit: Culprit, width: int) -> Iterator[Row]:
    """Yield the line that creates the resource, or why not and, for a peak, the largest share."""
    where, share = culprit.where, culprit.share
    verb = "highest at" if culprit.at_peak else culprit.traits.verb
    if "site" in culprit.unresolved and (where is None or culprit.companion):
        yield verb, f"not resolved: {culprit.unresolved['site']}"
    if where is not None:
        if culprit.companion:
            companion = find_resource(culprit.companion)
            yield "", f"about as many {companion.plural} remain as {culprit.traits.plural}:"
            verb = companion.verb
        yield from _site_rows(where, culprit.source, verb, width)
    elif share is not None:
        yield from _site_rows(share.where, share.source, "largest", width)
        size, total = (format_amount(one, "bytes") for one in (share.size, share.total))
        yield "", f"Python allocated {size} of {total} there; the rest is not resolved"


def _site_rows(where: CreationPath, source: str, verb: str, width: int) -> Iterator[Row]:
    yield verb, shorten(_format_site(where.site), width)
    if source:
        yield "", SOURCE_INDENT + shorten(source, width - 2)
    at = where.path.index(where.site)
    # The innermost line outside the standard library comes first, because the standard library is
    # rarely at fault.
    library = next((one for one in reversed(where.path) if not is_standard(one.file)), where.site)
    for inner in dict.fromkeys((library, where.path[-1])):
        if inner != where.site:
            text = f"{place(inner)} {inner.call or _format_function(inner)}"
            yield "", "inside " + shorten(text, width - len("inside "))
    # A generator expression has the place and the name of the function around it.
    _site, *callers = dict.fromkeys(map(_format_site, where.path[at::-1]))
    for caller in callers[:_MAX_CALLERS]:
        yield "", "called from " + shorten(caller, width - len("called from "))
    if where.process:
        yield "", f"in {where.process}"
    if where.fixture:
        # A path may contain the frame that runs the fixture without the one that tells the phase.
        phase = f"{_PHASE_NAMES[where.phase]}, " if where.phase else ""
        yield "", f"in fixture {where.fixture}, {phase}not in the test function itself"
    elif where.phase in ("setup", "teardown"):
        yield "", f"in {_PHASE_NAMES[where.phase]}, not in the test function itself"


def references(owner: Owner | None, width: int) -> Iterator[Row]:
    """Yield the lines of the path from the owner's root to the retained object; none if unknown.

    The second text is a note on the reference to the growing container; there is room for it and
    for `ARROW`.
    """
    if owner is None or not owner.steps:
        return
    # The count in "20 × bytes, ..." depends on how long the search for the owner ran, so only the
    # rest is shown.
    _count, times, kind = owner.holds.partition(" × ")
    targets = [*(step.holder for step in owner.steps[1:]), kind if times else owner.holds]
    yield shorten(owner.root, width), ""
    grows = f"grows by {owner.gained:.1f}/iter" if owner.gained else "keeps it"
    count, half = len(owner.steps), _MAX_STEPS // 2
    shown = [*range(half), *range(count - half, count)] if count > _MAX_STEPS else range(count)
    for depth, at in enumerate(shown):
        if at > depth == half:
            yield f"{'  ' * depth}… {count - _MAX_STEPS} more references", ""
        note = grows if _is_marked(*owner.steps[at : at + 2], first=at == 0) else ""
        line, room = (
            f"{'  ' * depth}└ {owner.steps[at].via} → ",
            width - (len(ARROW + note) if note else 0),
        )
        yield shorten(line + truncate(targets[at], room - len(line)), room), note


def _is_marked(step: Step, following: Step | None = None, *, first: bool) -> bool:
    """Return whether to mark a reference: the suspect, or for an entry, that to its container."""
    if following is not None and following.suspect and following.via.startswith(_ENTRY_PREFIXES):
        return True
    return step.suspect and (first or not step.via.startswith(_ENTRY_PREFIXES))


def junit_properties(finding: Finding) -> list[tuple[str, str]]:
    """Return names and values of the properties.

    A green test has one, so that the file of a large suite stays small: ``leakcheck.floor``, the
    growth that would have been caught, or ``leakcheck`` if there is none. Another test has
    ``leakcheck.<resource>`` for each verdict that is not green, ``leakcheck.finding`` (its
    fingerprint, as in the JSON report), and where they are known ``leakcheck.site`` and
    ``leakcheck.known`` (the entry in the file of known leaks).
    """
    if finding.colour == "green":
        floors = floors_text([finding])
        return [_shared_property("leakcheck.floor", floors) if floors else ("leakcheck", "ok")]
    found = []
    for verdict in finding.verdicts:
        if verdict.colour != "green":
            slope = f"{verdict.slope:g}/{per(finding)}" if verdict.slope else ""
            growth = verdict.law.order if verdict.law else slope
            found.append((f"leakcheck.{verdict.resource}", f"{verdict.outcome} {growth}".strip()))
    found.append(("leakcheck.finding", finding.fingerprint))
    if finding.site is not None:
        found.append(("leakcheck.site", place(finding.site)))
    return [*found, ("leakcheck.known", finding.known)] if finding.known else found


@lru_cache(maxsize=64)
def _shared_property(name: str, value: str) -> tuple[str, str]:
    """Share a pair between tests: pytest keeps each test's, and most have the same floors."""
    return name, value


def _headline_of_scaling(finding: Finding, scaled: Scaled) -> str:
    verdict = finding.verdict
    name = with_kind(verdict.resource.removeprefix(GAUGE_PREFIX), verdict.kind)
    if verdict.outcome == "over_budget":
        return f"{name} {verdict.reason}"
    if verdict.outcome != "ok":
        return f"{name} {verdict.outcome}: {verdict.reason}"
    sizes = f"{scaled.axis} {scaled.sizes[0]}…{scaled.sizes[-1]}"
    return f"{name} ok over {sizes} (budget {finding.budgets[verdict.resource]})"


def _scaling_rows(finding: Finding, scaled: Scaled) -> Iterator[Row]:
    """Yield the chart, law and phases of a test over an axis (an argument with growing sizes)."""
    shown: set[str] = set()
    for verdict in finding.verdicts:
        law = verdict.law
        if law is not None and verdict.resource not in shown:
            shown.add(verdict.resource)
            yield from _chart_rows(scaled, verdict)
            if law.exponent is not None:
                text = f"{law.order}: +{format_amount(law.slope, verdict.traits.unit)} per {per(finding)}"
                if law.exponents is not None and len(scaled.points) > _TOO_FEW_SIZES:
                    text += ", exponent {:.2f} ({:.2f} to {:.2f})".format(
                        law.exponent, *law.exponents
                    )
                yield "law", with_kind(text, verdict.kind)
        if verdict is not finding.verdict and verdict.reason:
            yield (
                "",
                f"{verdict.outcome.replace('_', ' ')}: {with_kind(verdict.reason, verdict.kind)}",
            )
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
        lines.append(
            "  ".join(filter(None, (f"{point.size:>{long}}", f"{text:>{wide}}", bar, parts))) + kind
        )
    yield from under(verdict.resource.removeprefix(GAUGE_PREFIX), lines)


def _format_parts(point: Point, resource: str) -> str:
    unit = find_resource(resource).unit
    ranks = [peak for recording in point.recordings for peak in peaks_of(recording, resource)]
    if len(ranks) > 1:
        low, high = format_amount(min(ranks), unit), format_amount(max(ranks), unit)
        span = f"{low} to {high} each" if low != high else f"{low} each"
        text = " + ".join(format_amount(peak, unit) for peak in ranks)
        return text if len(text) <= _MAX_RANKS_WIDTH else span
    return (
        f"{format_amount(point.children, unit)} of it in children"
        if resource == RESIDENT and point.children
        else ""
    )


def _phase_rows(scaled: Scaled) -> Iterator[Row]:
    """Yield the phases (parts of the test) at the largest size, of the rank that peaked highest."""
    recording = max(
        scaled.points[-1].recordings, key=lambda one: max(one.peaks.values(), default=0)
    )
    lines = []
    for phase in recording.phases:
        amounts = ", ".join(
            with_kind(
                f"{name} {format_amount(peak, find_resource(name).unit)}", recording.kind(name)
            )
            for name, peak in phase.amounts.items()
        )
        highest = f" (highest of {phase.count})" if phase.count > 1 else ""
        # Phases have no amounts for gauges (counters that the test defines), so a phase may have no
        # amounts at all.
        lines += [f"{phase.label}: {amounts}{highest}"] if amounts else []
    yield from under("phases", lines)


def _describe_method(scaled: Scaled, resources: set[str]) -> str:
    where = {
        "": "a fresh process per size",
        "thread": "a fresh process per size, its ranks as threads",
        "process": "a fresh process per rank",
        "gloo": "a fresh process per rank, joined over gloo",
        "ray": "a Ray actor per rank",
    }[scaled.engine]
    parts = [f"the test's body, in {where}"]
    if RESIDENT in resources:
        ranks = scaled.engine not in ("", "thread")
        children = (
            "child processes of ranks not included"
            if ranks
            else "child processes read from outside"
        )
        parts.append(f"memory read between calls and from the kernel's high-water mark, {children}")
    if resources - {RESIDENT}:
        parts.append("counters are read at each call and return, not within a C call")
    return "; ".join(parts)
