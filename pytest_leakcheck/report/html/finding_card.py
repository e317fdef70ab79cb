"""Build the card of a finding: what grows, where it is made, what holds it, what to do."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from pytest_leakcheck.model.cause import Cause
from pytest_leakcheck.model.culprit import Culprit, Site
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.finding_text import consequence, groups_of, headline
from pytest_leakcheck.report.glyphs import in_quotes
from pytest_leakcheck.report.html.finding_charts import TONES, chart_of_verdict
from pytest_leakcheck.report.html.view_model import Card, Chart, Entry, Part, Reference, Row, SourceLine

# Columns of the heading, and of a line of a report, which a narrow page wraps.
_HEADING_WIDTH: Final = 120
_TEXT_WIDTH: Final = 160
# Lines of source before and after the marked one, and their width.
_AROUND: Final = 3
_MAX_CHARACTERS: Final = 160
# Charts of one card: of the verdicts that are not green, the worst first.
_MAX_CHARTS: Final = 3
_MISSING_VERDICTS: Final = ("inconclusive", "unavailable")
_PATH_NOTE: Final = "Sizes include the warm-up, and the iterations that searched for the cause."


def card_of_cause(cause: Cause, findings: Sequence[Finding], session: Session, anchor: str, *, charts: bool) -> Card:
    """Build the card of a cause, which describes the first of its findings, as in the terminal.

    Without `charts`, the readings are still in its text. `anchor` is the id of the card.
    """
    first = findings[0]
    card = card_of_finding(first, session, charts=charts_of(first) if charts else ())
    # Equal rates are in the title.
    rates = (cause.rates,) if cause.slowest != cause.fastest and cause.rates else ()
    about = (*card.about[:1], _count_tests(cause), *rates)
    tests = tuple(Entry(one.test, headline(one, _HEADING_WIDTH), TONES[one.colour]) for one in findings)
    badge = f"known {cause.outcome.replace('_', ' ')}" if cause.known else card.badge
    return replace(card, badge=badge, about=about, tests=tests, anchor=anchor)


def card_of_finding(finding: Finding, session: Session, charts: tuple[Chart, ...] = (), command: str = "") -> Card:
    """Build the card of one test; without a shell `command` that measures it again, that of the session is used."""
    if not session.source and finding.culprit is not None:
        finding = replace(finding, culprit=_without_source(finding.culprit))
    verdict, line = finding.verdict, headline(finding, _HEADING_WIDTH)
    green = verdict.outcome == "ok"
    return Card(
        title=finding.test.partition("::")[2] or finding.test if green else line,
        tone=TONES[finding.colour],
        badge=verdict.outcome.replace("_", " "),
        about=(line,) if green else (f"finding {finding.fingerprint}", finding.test),
        lead="; ".join(filter(None, (since(finding), consequence(finding)))),
        parts=tuple(part for part in _parts(finding, session) if part.rows or part.source or part.path),
        charts=charts,
        command=command or rerun_command(finding, session),
        resource=verdict.resource,
        attached=PurePath(finding.snapshot).name,
    )


def charts_of(finding: Finding) -> tuple[Chart, ...]:
    """Return the charts of the verdicts that are not green."""
    shown = [one for one in finding.verdicts if one.colour != "green"][:_MAX_CHARTS]
    return tuple(chart for chart in (chart_of_verdict(finding, one) for one in shown) if chart is not None)


def since(finding: Finding) -> str:
    """State since which iteration the resource of the worst verdict was above its first reading, and how fast it grew.

    Empty if that is not known, or if the resource did not grow.
    """
    verdict, recording = finding.verdict, finding.recording
    series = recording.find(verdict.resource)
    if series is None or finding.scaled is not None or verdict.outcome in (*_MISSING_VERDICTS, "ok"):
        return ""
    if verdict.outcome == "unclosed":
        rising = [at for at, released in enumerate(series.released, start=1) if released][:1]
    else:
        # After the last reading that was not above the first one.
        level = [at for at, value in enumerate(series.readings) if value <= series.readings[0]]
        rising = [level[-1] + 1] if level[-1] < series.iterations else []
    if not rising:
        return ""
    grows = f"{format_rate(verdict.slope, verdict.traits.unit)} " if verdict.slope else "higher "
    warmup = f" (after {recording.warmup} of warm-up)" if recording.warmup else ""
    return f"{grows}since iteration {rising[0]:,} of {series.iterations:,}{warmup}"


def rerun_command(finding: Finding, session: Session) -> str:
    """Return the shell command that measures the test again; empty for a measurement in a script."""
    if "::" not in finding.test:
        return ""
    culprit = finding.culprit
    words = [session.rerun]
    words += [session.more_time] if culprit is not None and culprit.ran_out_of_time and session.more_time else []
    words += ["--leakcheck-isolate"] if "isolated" in finding.recording.environment else []
    return " ".join((*words, in_quotes(finding.test)))


def _count_tests(cause: Cause) -> str:
    return cause.tests[0] if len(cause.tests) == 1 else f"{len(cause.tests):,} tests"


def _parts(finding: Finding, session: Session) -> Iterator[Part]:
    culprit, outcome = finding.culprit, finding.verdict.outcome
    excerpt = _excerpt(culprit) if culprit is not None and session.source else ()
    if culprit is not None and excerpt:
        # The excerpt contains the line itself.
        finding = replace(finding, culprit=_without_source(culprit))
    groups = groups_of(finding, _TEXT_WIDTH)

    def gather(*names: str) -> tuple[Row, ...]:
        """Join rows without a label to the row before them."""
        texts: dict[int, tuple[str, list[str]]] = {}
        for label, text in (row for name in names for row in groups.get(name, ())):
            if texts and not label:
                texts[len(texts) - 1][1].append(text)
            elif text:
                texts[len(texts)] = label, [text]
        return tuple(Row(label, "\n".join(lines)) for label, lines in texts.values())

    grows = outcome not in ("ok", *_MISSING_VERDICTS)
    yield Part("What grows" if grows else "What was measured", gather("verdict", "series", "settings"))
    if outcome != "ok":
        path = tuple(Reference(text, note) for text, note in groups.get("path", ()))
        # At a peak, the sizes are those of the run that reached it.
        note = _PATH_NOTE if path and outcome == "leak" and not finding.verdict.peak else ""
        yield Part("Where it is made", gather("origin"), excerpt)
        yield Part("What holds it", gather("holder", "held"), path=path, note=note)
        yield Part("What to do", gather("hint", "advice"))


def _excerpt(culprit: Culprit) -> tuple[SourceLine, ...]:
    """Return the lines around the one to change; nothing if they cannot be read, or if it is another line by now."""
    site: Site | None = culprit.site
    text = culprit.source
    if culprit.where is None and culprit.share is not None:
        site, text = culprit.share.where.site, culprit.share.source
    # The name comes from a report, which may come from anywhere: it must not show other files of this machine.
    if site is None or not site.file.endswith(".py") or not Path(site.file).is_file():
        return ()
    lines = linecache.getlines(site.file)
    if not 1 <= site.line <= len(lines) or (text and lines[site.line - 1].strip() != text):
        return ()
    shown = range(max(1, site.line - _AROUND), min(len(lines), site.line + _AROUND) + 1)
    return tuple(SourceLine(at, lines[at - 1][:_MAX_CHARACTERS].rstrip(), at == site.line) for at in shown)


def _without_source(culprit: Culprit) -> Culprit:
    share = replace(culprit.share, source="") if culprit.share is not None else None
    return replace(culprit, source="", share=share)
