"""Convert the report of a session (``--leakcheck-json``) to a `Page`: causes, a table of tests, and green tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from pytest_leakcheck.model.cause import Causes, key_of_cause
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import DEVICE_MEMORY, GAUGE_PREFIX, RESOURCES, known
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.model.units import format_count, format_rate
from pytest_leakcheck.model.verdict import WORST_FIRST, Verdict
from pytest_leakcheck.report.finding_text import green_lines
from pytest_leakcheck.report.html.finding_card import card_of_cause
from pytest_leakcheck.report.html.finding_charts import TONES
from pytest_leakcheck.report.html.view_model import Card, Cell, Entry, Matrix, MatrixRow, Page, Row, Section, Tone
from pytest_leakcheck.report.json_file import Report
from pytest_leakcheck.report.terminal_summary import Tally, first_line, memory_not_judged, not_read_lines

# Cards with charts: a browser takes a millisecond for each. The others have their readings in the text.
_MAX_CARDS_WITH_CHARTS: Final = 200
# A longer table is folded.
_MAX_ROWS: Final = 20
_COMMIT_DIGITS: Final = 12
# What the environment of a recording has that is the same for all tests.
_VERSIONS: Final = ("python", "system", "libc", DEVICE_MEMORY)


def page_of_report(report: Report, title: str, *, source: bool = True) -> Page:
    """Build the page of a report, with lines of source unless `source` or the session leaves them out."""
    with known(report.resources):
        findings, session = report.findings, report.session
        shown = session or Session()
        cards = cards_of(findings, shown if source else replace(shown, source=False))
        tally = Tally(findings)
        anchors = {line.name: card.anchor for card in reversed(cards) for line in card.tests}
        matrix = matrix_of([one for one in findings if one.colour != "green"], anchors)
        sections = (
            Section("Causes" if cards else "", cards=cards),
            Section("Tests and resources", matrix=matrix, folded=len(matrix.rows) > _MAX_ROWS),
            Section("Green tests", entries=green_entries(findings), folded=True),
        )
        return Page(
            title,
            _counts(cards, tally),
            tuple(_summary(tally, session)),
            tuple(_facts(findings, session)),
            tuple(one for one in sections if one.cards or one.entries or (one.matrix and one.matrix.rows)),
            partial=session is None or any(one.recording.stopped == "interrupted" for one in findings),
        )


def cards_of(findings: Sequence[Finding], session: Session) -> tuple[Card, ...]:
    """Return a card for each cause: red ones first, then by outcome and by the number of tests."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in (one for one in findings if one.colour != "green"):
        groups.setdefault(key_of_cause(finding), []).append(finding)
    causes = sorted(
        Causes(findings).list(),
        key=lambda one: (one.colour != "red", not one.known, WORST_FIRST.index(one.outcome), -len(one.tests)),
    )
    return tuple(
        card_of_cause(
            cause,
            groups[cause.finding, cause.outcome],
            session,
            f"cause-{number}",
            charts=number <= _MAX_CARDS_WITH_CHARTS,
        )
        for number, cause in enumerate(causes, start=1)
    )


def matrix_of(findings: Sequence[Finding], anchors: dict[str, str]) -> Matrix:
    """Return the table of these findings, one per row, and of the resources that they judge.

    `anchors` has the id of the card of each test.
    """
    verdicts = [verdict for finding in findings for verdict in finding.verdicts]
    judged, not_green = {one.resource for one in verdicts}, {one.resource for one in verdicts if one.colour != "green"}
    resources = [*(name for name in RESOURCES if name in judged), *sorted(judged.difference(RESOURCES))]
    # On a narrow screen, only the first columns show.
    resources.sort(key=lambda name: name not in not_green)
    rows = []
    for finding in findings:
        by_resource = {one.resource: one for one in reversed(finding.verdicts)}
        cells = (_cell(by_resource.get(name)) for name in resources)
        rows.append(MatrixRow(finding.test, TONES[finding.colour], anchors.get(finding.test, ""), tuple(cells)))
    rows.sort(key=lambda row: row.tone != "bad")
    return Matrix(tuple(name.removeprefix(GAUGE_PREFIX) for name in resources), tuple(rows))


def green_entries(findings: Sequence[Finding]) -> tuple[Entry, ...]:
    """Return an entry for each green finding: what it would have caught, and what its verdicts say."""
    return tuple(Entry(one.test, "; ".join(green_lines(one)), "good") for one in findings if one.colour == "green")


def _cell(verdict: Verdict | None) -> Cell:
    if verdict is None:
        return Cell()
    tone = TONES[verdict.colour or "green"]
    if verdict.outcome == "leak" and verdict.slope:
        return Cell(format_rate(verdict.slope, verdict.traits.unit), tone)
    return Cell(verdict.outcome.replace("_", " "), tone)


def _counts(cards: Sequence[Card], tally: Tally) -> tuple[Cell, ...]:
    def count(number: int, words: str, tone: Tone) -> tuple[Cell, ...]:
        return (Cell(format_count(number, words), tone),) if number else ()

    red, yellow = (sum(card.tone == tone for card in cards) for tone in ("bad", "unsure"))
    green = sum(outcome == "ok" for outcome in tally.worst.values())
    found = (
        *count(red, "red cause", "bad"),
        *count(yellow, "yellow cause", "unsure"),
        *count(green, "green test", "good"),
    )
    return found or (Cell("No test was measured."),)


def _summary(tally: Tally, session: Session | None) -> Iterator[str]:
    if session is not None and session.headline:
        yield session.headline
    elif tally.worst:
        yield first_line(tally, tally.seconds)
    if line := memory_not_judged(tally):
        yield line
    yield from session.notes if session is not None else ()
    yield from not_read_lines(tally)


def _facts(findings: Sequence[Finding], session: Session | None) -> Iterator[Row]:
    session = session or Session()
    if session.seconds:
        yield Row("duration", f"{session.seconds:,.1f} s")
    if session.host:
        yield Row("host", session.host)
    if session.commit:
        yield Row("commit", session.commit[:_COMMIT_DIGITS])
    found = (one.recording.environment for one in findings if one.recording.environment)
    measured = {name: text for name, text in next(found, {}).items() if name in _VERSIONS}
    versions = {**session.versions, **measured}
    if versions:
        yield Row("versions", ", ".join(f"{name} {text}" for name, text in versions.items()))
    if session.command:
        yield Row("command", session.command)
