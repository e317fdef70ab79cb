"""Convert the report of a session (``--leakcheck-json``) to a `Page`: causes, a table of tests, and green tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pytest_leakcheck.model.cause import Causes, key_of_cause
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import DEVICE_MEMORY, GAUGE_PREFIX, RESOURCES, known
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.model.units import format_count, format_rate
from pytest_leakcheck.model.verdict import WORST_FIRST, Verdict
from pytest_leakcheck.report.finding_text import green_lines
from pytest_leakcheck.report.glyphs import Row
from pytest_leakcheck.report.html.finding_card import TONES, card_of_cause
from pytest_leakcheck.report.html.view_model import Card, Cell, Entry, Page, Section, Tone
from pytest_leakcheck.report.json_file import Report
from pytest_leakcheck.report.terminal_summary import Tally, first_line, memory_not_judged, not_read_lines

# Cards with charts: a browser takes a millisecond for each. The others have their readings in the text.
_MAX_CHARTED: Final = 200
# A longer table is folded.
_MAX_ROWS: Final = 20
_COMMIT_DIGITS: Final = 12
# What the environment of a recording has that is the same for all tests.
_VERSIONS: Final = ("python", "system", "libc", DEVICE_MEMORY)


def page_of_report(report: Report, title: str, *, source: bool = True) -> Page:
    """Build the page of a report, with lines of source unless `source` or the session leaves them out."""
    with known(report.resources):
        findings, session = report.findings, report.session or Session()
        cards = _cards_of(findings, session if source else replace(session, source=False))
        tally = Tally(findings)
        # A test may have several cards; the first is the worst.
        anchors = {entry.name: card.anchor for card in reversed(cards) for entry in card.tests}
        green = (Entry(one.test, "; ".join(green_lines(one)), "good") for one in findings if one.colour == "green")
        sections = (
            Section("Causes" if cards else "", cards=cards),
            _table_of([one for one in findings if one.colour != "green"], anchors),
            Section("Green tests", entries=tuple(green), folded=True),
        )
        return Page(
            title,
            _counts(cards, tally),
            tuple(_summary(tally, session)),
            tuple(row for row in _facts(findings, session) if row[1]),
            tuple(one for one in sections if one.cards or one.entries or one.table),
            partial=report.session is None or any(one.recording.stopped == "interrupted" for one in findings),
        )


def _cards_of(findings: Sequence[Finding], session: Session) -> tuple[Card, ...]:
    """Return a card for each cause: red ones first, then by outcome and by the number of tests."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(key_of_cause(finding), []).append(finding)
    causes = sorted(
        Causes(findings).list(),
        key=lambda one: (one.colour != "red", not one.known, WORST_FIRST.index(one.outcome), -len(one.tests)),
    )
    return tuple(
        card_of_cause(cause, groups[cause.finding, cause.outcome], session, f"cause-{at}", charts=at <= _MAX_CHARTED)
        for at, cause in enumerate(causes, start=1)
    )


def _table_of(findings: Sequence[Finding], anchors: Mapping[str, str]) -> Section:
    """Return the table of the findings and the resources that they judge; `anchors` has the card of each test."""
    verdicts = [verdict for finding in findings for verdict in finding.verdicts]
    judged, not_green = {one.resource for one in verdicts}, {one.resource for one in verdicts if one.colour != "green"}
    resources = [*(name for name in RESOURCES if name in judged), *sorted(judged.difference(RESOURCES))]
    # On a narrow screen, only the first columns show.
    resources.sort(key=lambda name: name not in not_green)
    rows = []
    for finding in sorted(findings, key=lambda one: one.colour != "red"):
        by_resource = {one.resource: one for one in reversed(finding.verdicts)}
        cells = tuple(_cell(by_resource.get(name)) for name in resources)
        rows.append((finding.test, TONES[finding.colour], anchors.get(finding.test, ""), cells))
    columns = tuple(name.removeprefix(GAUGE_PREFIX) for name in resources)
    return Section("Tests and resources", columns=columns, table=tuple(rows), folded=len(rows) > _MAX_ROWS)


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
    found = tuple((format_count(tones[tone], word), tone) for tone, word in words.items() if tones[tone])
    return found or (("No test was measured.", "plain"),)


def _summary(tally: Tally, session: Session) -> Iterator[str]:
    if session.headline:
        yield session.headline
    elif tally.worst:
        yield first_line(tally, tally.seconds)
    if line := memory_not_judged(tally):
        yield line
    yield from session.notes
    yield from not_read_lines(tally)


def _facts(findings: Sequence[Finding], session: Session) -> Iterator[Row]:
    yield "duration", f"{session.seconds:,.1f} s" if session.seconds else ""
    yield "host", session.host
    yield "commit", session.commit[:_COMMIT_DIGITS]
    environment = next((one.recording.environment for one in findings if one.recording.environment), {})
    versions = {**session.versions, **{name: text for name, text in environment.items() if name in _VERSIONS}}
    yield "versions", ", ".join(f"{name} {text}" for name, text in versions.items())
    yield "command", session.command
