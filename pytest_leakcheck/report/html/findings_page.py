"""Convert a JSON report (``--leakcheck-json``) to a `Page`: cards of causes, a table of tests."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf
from pathlib import Path, PurePath
from typing import Final

from pytest_leakcheck.model.culprit import Culprit, Site, digest_of
from pytest_leakcheck.model.escaping import escape_controls
from pytest_leakcheck.model.finding import (
    WORST_FIRST,
    Cause,
    Causes,
    Colour,
    Finding,
    Verdict,
    key_of_cause,
)
from pytest_leakcheck.model.resources import DEVICE_MEMORY, GAUGE_PREFIX, RESOURCES, with_rows_of
from pytest_leakcheck.model.units import format_amount, format_count, format_rate
from pytest_leakcheck.report.finding_text import (
    consequence,
    green_lines,
    groups_of,
    headline,
    limit_ahead,
)
from pytest_leakcheck.report.glyphs import Row, in_quotes
from pytest_leakcheck.report.html.page import (
    XY,
    Card,
    Cell,
    Chart,
    Curve,
    Entry,
    Limit,
    Page,
    Part,
    Section,
    Tone,
)
from pytest_leakcheck.report.json_file import Report, Session
from pytest_leakcheck.report.summary import Tally

# Cards with a chart: a browser takes a millisecond for each. The others have their readings in the
# text.
_MAX_CHARTED: Final = 200
# A longer table is folded.
_MAX_ROWS: Final = 20
# What the environment of a recording has that is the same for all tests.
_VERSIONS: Final = ("python", "system", "libc", DEVICE_MEMORY)
TONES: Final[Mapping[Colour | None, Tone]] = {"green": "good", "yellow": "unsure", "red": "bad"}
# Columns of the heading, and of a line of a report, which a narrow page wraps.
_HEADING_WIDTH: Final = 120
_TEXT_WIDTH: Final = 160
# Lines of source before and after the marked one, and their width.
_AROUND: Final = 3
_MAX_CHARACTERS: Final = 160
# A larger file is not read.
_MAX_FILE_BYTES: Final = 10 * 1024 * 1024
_MISSING_VERDICTS: Final = ("inconclusive", "unavailable")
_PATH_NOTE: Final = "Sizes include the warm-up, and the iterations that searched for the cause."


def page_of_report(
    report: Report, title: str, *, source: bool = True, folder: Path | None = None
) -> Page:
    """Build the page of a report, with source lines unless `source` or the session leaves them out.

    With a `folder`, files elsewhere are not read: a report may come from anybody.
    """
    with with_rows_of(report.resources):
        findings, session = report.findings, report.session or Session()
        if folder is not None:
            findings = tuple(
                finding if _is_below(finding, folder.resolve()) else _without_digest(finding)
                for finding in findings
            )
        cards = _cards_of(findings, session if source else replace(session, source=False))
        tally = Tally(findings)
        headline_of_all = session.headline or (tally.headline(tally.seconds) if tally.worst else "")
        summary = (headline_of_all, tally.memory_not_judged, *session.notes, *tally.not_read)
        sections = _sections_of(cards, findings)
        return Page(
            title,
            _counts(cards, tally),
            tuple(filter(None, summary)),
            tuple(row for row in _facts(findings, session) if row[1]),
            tuple(one for one in sections if one.cards or one.entries or one.table),
            partial=report.session is None
            or any(one.recording.stopped == "interrupted" for one in findings),
        )


def page_of_finding(finding: Finding) -> Page:
    """Build a page with the card of one finding and nothing else."""
    chart = chart_of_verdict(finding, finding.verdict)
    card = card_of_finding(finding, Session(), [chart] if chart is not None else [])
    return Page(finding.test, sections=(Section(cards=(card,)),))


def _sections_of(cards: tuple[Card, ...], findings: Sequence[Finding]) -> tuple[Section, ...]:
    # A test may have several cards; the first is the worst.
    anchors = {entry.name: card.anchor for card in reversed(cards) for entry in card.tests}
    green = [one for one in findings if one.colour == "green" and one.fault is None]
    caught = ("; ".join(green_lines(one)).removeprefix("would have caught ") for one in green)
    rows = tuple(Entry(one.test, text, "good") for one, text in zip(green, caught, strict=True))
    return (
        Section("Causes" if cards else "", cards=cards),
        _table_of([one for one in findings if one.colour != "green"], anchors),
        Section(
            "Green tests",
            "The smallest leak that each would have caught:",
            entries=rows,
            folded=True,
        ),
    )


def _cards_of(findings: Sequence[Finding], session: Session) -> tuple[Card, ...]:
    """Return a card per cause: red first, then by outcome, steps to a limit and number of tests."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(key_of_cause(finding), []).append(finding)

    def rank(cause: Cause) -> tuple[bool, bool, int, float, int]:
        # Not from the level at which the test begins, which is higher after the leaks of other
        # tests.
        ahead = limit_ahead(groups[cause.finding, cause.outcome][0])
        steps, outcome = (
            ahead[1] / cause.fastest if ahead else inf,
            WORST_FIRST.index(cause.outcome),
        )
        return cause.colour != "red", not cause.known, outcome, steps, -len(cause.tests)

    causes = sorted(Causes(findings).list(), key=rank)
    return tuple(
        card_of_cause(
            cause,
            groups[cause.finding, cause.outcome],
            session,
            f"cause-{at}",
            charts=at <= _MAX_CHARTED,
        )
        for at, cause in enumerate(causes, start=1)
    )


def _table_of(findings: Sequence[Finding], anchors: Mapping[str, str]) -> Section:
    """Return the table of findings and judged resources; `anchors` has the card of each test."""
    verdicts = [verdict for finding in findings for verdict in finding.verdicts]
    judged, not_green = (
        {one.resource for one in verdicts},
        {one.resource for one in verdicts if one.colour != "green"},
    )
    resources = [
        *(name for name in RESOURCES if name in judged),
        *sorted(judged.difference(RESOURCES)),
    ]
    # On a narrow screen, only the first columns show.
    resources.sort(key=lambda name: name not in not_green)
    rows = []
    for finding in sorted(findings, key=lambda one: one.colour != "red"):
        by_resource = {one.resource: one for one in reversed(finding.verdicts)}
        cells = tuple(_cell(by_resource.get(name)) for name in resources)
        rows.append((finding.test, TONES[finding.colour], anchors.get(finding.test, ""), cells))
    columns = tuple(name.removeprefix(GAUGE_PREFIX) for name in resources)
    return Section(
        "Tests and resources", columns=columns, table=tuple(rows), folded=len(rows) > _MAX_ROWS
    )


def _cell(verdict: Verdict | None) -> Cell:
    if verdict is None:
        return "", "plain"
    tone = TONES[verdict.colour or "green"]
    if verdict.outcome == "leak" and verdict.slope:
        return format_rate(verdict.slope, verdict.traits.unit), tone
    return verdict.outcome.replace("_", " "), tone


def _counts(cards: Sequence[Card], tally: Tally) -> tuple[Cell, ...]:
    tones = Counter(card.tone for card in cards)
    tones["good"] = sum(outcome == "ok" for outcome in tally.worst.values())
    words: dict[Tone, str] = {"bad": "red cause", "unsure": "yellow cause", "good": "green test"}
    found = tuple(
        (format_count(tones[tone], word), tone) for tone, word in words.items() if tones[tone]
    )
    return found or (("No test was measured.", "plain"),)


def _facts(findings: Sequence[Finding], session: Session) -> Iterator[Row]:
    yield "duration", f"{session.seconds:,.1f} s" if session.seconds else ""
    yield "host", session.host
    yield "commit", session.commit[:12]
    environment = next(
        (one.recording.environment for one in findings if one.recording.environment), {}
    )
    versions = {
        **session.versions,
        **{name: text for name, text in environment.items() if name in _VERSIONS},
    }
    yield "versions", ", ".join(f"{name} {text}" for name, text in versions.items())
    yield "command", session.command


def card_of_cause(
    cause: Cause, findings: Sequence[Finding], session: Session, anchor: str, *, charts: bool
) -> Card:
    """Build the card of a cause, which describes the first of its findings, as in the terminal.

    Without `charts`, the readings are still in its text. `anchor` is the id of the card.
    """
    chart = chart_of_verdict(findings[0], findings[0].verdict) if charts else None
    card = card_of_finding(findings[0], session, [chart] if chart is not None else [])
    count = cause.tests[0] if len(cause.tests) == 1 else f"{len(cause.tests):,} tests"
    return replace(
        card,
        badge=f"known {card.badge}" if cause.known else card.badge,
        # Equal rates are in the title.
        about=(*card.about[:1], count, *([cause.rates] if " to " in cause.rates else [])),
        tests=tuple(
            Entry(finding.test, headline(finding, _HEADING_WIDTH), TONES[finding.colour])
            for finding in findings
        ),
        anchor=anchor,
    )


def card_of_finding(
    finding: Finding, session: Session, charts: Iterable[Chart] = (), command: str = ""
) -> Card:
    """Build the card of a test; a shell `command` measures it again, by default the session's."""
    # Of the finding as it is: the line of source is part of what is hashed.
    fingerprint = finding.fingerprint
    if not session.source:
        finding = _without_source(finding)
    verdict, line = finding.verdict, headline(finding, _HEADING_WIDTH)
    green = verdict.outcome == "ok"
    return Card(
        title=finding.test.partition("::")[2] or finding.test if green else line,
        tone=TONES[finding.colour],
        badge=verdict.outcome.replace("_", " "),
        about=(line,) if green else (f"finding {fingerprint}", finding.test),
        lead="; ".join(filter(None, (since(finding), consequence(finding)))),
        parts=tuple(_parts(finding, session, command or rerun_command(finding, session))),
        charts=tuple(charts),
        resource=verdict.resource,
        attached=escape_controls(PurePath(finding.snapshot).name),
    )


def since(finding: Finding) -> str:
    """State since which iteration the resource of the worst verdict grew, and how fast.

    From there on, it was above its first reading. Empty if that is not known, or if the resource
    did not grow.
    """
    verdict, recording = finding.verdict, finding.recording
    series = recording.find(verdict.resource)
    if (
        series is None
        or finding.scaled is not None
        or verdict.outcome in (*_MISSING_VERDICTS, "ok")
    ):
        return ""
    if verdict.outcome == "unclosed":
        begin = next((at for at, released in enumerate(series.released, start=1) if released), 0)
    else:
        # After the last reading that was not above the first one.
        level = max(at for at, value in enumerate(series.readings) if value <= series.readings[0])
        begin = level + 1 if level < series.iterations else 0
    if not begin:
        return ""
    grows = format_rate(verdict.slope, verdict.traits.unit) if verdict.slope else "higher"
    warmup = f" (after {recording.warmup} of warm-up)" if recording.warmup else ""
    return f"{verdict.traits.plural} {grows} since iteration {begin:,} of {series.iterations:,}{warmup}"


def rerun_command(finding: Finding, session: Session) -> str:
    """Return the shell command that measures the test again; empty for one in a script."""
    if "::" not in finding.test:
        return ""
    culprit = finding.culprit
    more_time = session.more_time if culprit is not None and culprit.ran_out_of_time else ""
    isolate = "--leakcheck-isolate" if "isolated" in finding.recording.environment else ""
    return " ".join(filter(None, (session.rerun, more_time, isolate, in_quotes(finding.test))))


def _parts(finding: Finding, session: Session, command: str) -> Iterator[Part]:
    outcome = finding.verdict.outcome
    excerpt = _excerpt(finding.culprit) if finding.culprit is not None and session.source else ()
    # The excerpt contains the line itself.
    groups = groups_of(_without_source(finding) if excerpt else finding, _TEXT_WIDTH)

    def gather(*names: str) -> tuple[Row, ...]:
        """Join rows without a label to the row before them."""
        rows: list[Row] = []
        for label, text in (row for name in names for row in groups.get(name, ())):
            if rows and not label:
                rows[-1] = rows[-1][0], f"{rows[-1][1]}\n{text}"
            elif text:
                rows.append((label, text))
        return tuple(rows)

    path = tuple(groups.get("path", ()))
    # At a peak, the sizes are those of the run that reached it.
    note = _PATH_NOTE if path and outcome == "leak" and not finding.verdict.peak else ""
    made = Part("Where it is made", gather("origin"), excerpt)
    held = Part("What holds it", gather("holder", "held"), path=path, note=note)
    to_do = Part("What to do", gather("hint", "advice"), command=command)
    yield from (
        part
        for part in (made, held, to_do)
        if outcome != "ok" and (part.rows or part.path or part.command)
    )
    yield Part(
        "What was measured",
        gather("verdict", "series", "settings"),
        command=command if outcome == "ok" else "",
    )


def _shown_site(culprit: Culprit) -> Site | None:
    """Return the line whose file is read."""
    where = culprit.where or (culprit.share.where if culprit.share is not None else None)
    return where.site if where is not None and culprit.digest else None


def _is_below(finding: Finding, folder: Path) -> bool:
    site = _shown_site(finding.culprit) if finding.culprit is not None else None
    return site is None or Path(site.file).resolve().is_relative_to(folder)


def _without_digest(finding: Finding) -> Finding:
    return (
        replace(finding, culprit=replace(finding.culprit, digest=""))
        if finding.culprit is not None
        else finding
    )


def _excerpt(culprit: Culprit) -> tuple[tuple[int, str, bool], ...]:
    """Return the lines around the one to change; none if the file is unreadable or has changed."""
    # The name comes from a report, which may come from anywhere. Only who has the file knows its
    # digest.
    if (site := _shown_site(culprit)) is None or not site.file.endswith(".py"):
        return ()
    path = Path(site.file)
    if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES:
        return ()
    lines = linecache.getlines(site.file)
    if not 1 <= site.line <= len(lines) or digest_of(lines) != culprit.digest:
        return ()
    around = range(max(1, site.line - _AROUND), min(len(lines), site.line + _AROUND) + 1)
    # Without the empty lines before and after.
    filled = [at for at in around if lines[at - 1].strip()]
    shown = range(filled[0], filled[-1] + 1)
    return tuple((at, lines[at - 1][:_MAX_CHARACTERS].rstrip(), at == site.line) for at in shown)


def _without_source(finding: Finding) -> Finding:
    culprit = finding.culprit
    if culprit is None:
        return finding
    share = replace(culprit.share, source="") if culprit.share is not None else None
    return replace(finding, culprit=replace(culprit, source="", share=share))


def chart_of_verdict(
    finding: Finding,
    verdict: Verdict,
    title: str = "",
    name: str = "",
    beside: Iterable[Curve | None] = (),
) -> Chart | None:
    """Return the chart of one verdict; None if `curve_of` finds too few readings.

    Without a `title`, the resource is described. `name` distinguishes the curve from those `beside`
    it.
    """
    released = verdict.outcome == "unclosed"
    curve = curve_of(finding, verdict, name, released=released)
    if curve is None:
        return None
    counted = f"{verdict.resource} without garbage collection" if released else verdict.resource
    limit = None
    if verdict is finding.verdict and (ahead := limit_ahead(finding)):
        (at, value), resource = ahead, verdict.traits
        amount = f"{value:,}" if resource.unit == "count" else format_amount(value, resource.unit)
        text = f"limit {amount}{resource.limit}, reached after ≈ {at:,.0f}"
        limit = Limit(at - finding.recording.warmup, value, text)
    return Chart(
        f"{counted}: {title or verdict.traits.plural}",
        verdict.traits.unit,
        _axis_of(finding),
        (curve, *filter(None, beside)),
        f"{verdict.resource} {verdict.outcome.replace('_', ' ')}: {verdict.reason}".removesuffix(
            ": "
        ),
        limit,
    )


def _axis_of(finding: Finding) -> str:
    scaled = finding.scaled
    if scaled is None:
        return "iteration"
    return f"ranks ({scaled.engine})" if scaled.engine else scaled.axis


def curve_of(
    finding: Finding, verdict: Verdict, name: str, *, released: bool = False
) -> Curve | None:
    """Return the readings behind one verdict as a curve; None if there are fewer than two.

    For a test over an axis (an argument that takes growing sizes), it shows the peak at each size.
    With `released`, it shows what there would be if the garbage collector had released nothing.
    """
    tone, scaled = TONES[verdict.colour], finding.scaled
    if scaled is not None:
        peaks = zip(scaled.sizes, scaled.peaks(verdict.resource, "total"), strict=True)
        points = tuple((float(size), float(peak)) for size, peak in peaks)
        return Curve(name, points, tone) if points else None
    series = finding.recording.find(verdict.resource)
    if series is None or series.iterations < 1:
        return None
    readings = (
        accumulate(series.released, initial=series.readings[0]) if released else series.readings
    )
    points = tuple((float(at), float(value)) for at, value in enumerate(readings))
    line: tuple[XY, XY] | None = None
    # An exact counter that grows is its own line.
    if verdict.slope and verdict.outcome in ("leak", "over_budget") and not verdict.traits.scarce:
        # Over the later half of the series, which is judged.
        (x0, _y0), (x1, y1) = points[len(points) // 2], points[-1]
        line = (x0, y1 - verdict.slope * (x1 - x0)), (x1, y1)
    return Curve(name, points, tone, line)
