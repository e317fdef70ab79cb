"""Render the findings of a session as the section at the end of the terminal output."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from pytest_leakcheck.config.settings import Settings
from pytest_leakcheck.model.culprit import touches
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import GAUGE_PREFIX
from pytest_leakcheck.model.verdict import WORST_FIRST, Verdict
from pytest_leakcheck.report.finding_text import WIDTH, floor_text, headline, per
from pytest_leakcheck.report.glyphs import Glyphs, shorten, with_kind

# A fingerprint (an identifier of the cause) begins with this many digits. The rest names the resource and the line.
_FINGERPRINT_DIGITS: Final = 6


class Tally:
    """What the section says of all tests together, without their findings.

    Attributes:
        worst: The worst outcome of each test. A test that measures several loops or blocks counts once.
        seconds: How long repeating the tests took.
        unavailable: The counters that could not be read, with the reason.
    """

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self.worst: dict[str, str] = {}
        self.seconds = 0.0
        self.unavailable: dict[str, str] = {}
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        outcome = finding.verdict.outcome
        self.worst[finding.test] = min(outcome, self.worst.get(finding.test, "ok"), key=WORST_FIRST.index)
        self.seconds += finding.recording.seconds
        self.unavailable |= finding.recording.unavailable


def first_line(tally: Tally, seconds: float, glyphs: Glyphs) -> str:
    """Return a line with the number of measured tests, their outcomes and the time that repeating them took.

    Args:
        tally: The tests.
        seconds: How long the session took.
        glyphs: The characters that the output stream can show.
    """
    counts = Counter(tally.worst.values())
    parts = [
        f"{counts[outcome]} {outcome.replace('_', ' ')}" for outcome in ("ok", *WORST_FIRST[:-1]) if counts[outcome]
    ]
    spent = tally.seconds
    # With xdist workers the sum covers all of them and can exceed the wall time.
    cost = f"repeating took {spent:.1f} s{'' if spent <= seconds else ' in all workers'}"
    return f" {glyphs.dot} ".join((f"{len(tally.worst)} measured", *parts, cost))


def unmeasured_lines(reasons: Iterable[str]) -> tuple[str, ...]:
    """Return a line for each reason why tests that asked for a verdict have none.

    Args:
        reasons: The reason of each such test.
    """
    return tuple(f"leakcheck: {count} not measured: {reason}" for reason, count in Counter(reasons).items())


def nothing_measured(passed: int) -> tuple[str, ...]:
    """Return lines that explain why a session that asked for leaks has no verdict.

    Args:
        passed: How many tests passed.
    """
    return (
        f"leakcheck: 0 of {passed} measured: none carries `leakcheck` or a budget",
        "  mark a whole file with: pytestmark = pytest.mark.leakcheck",
    )


def unknown_blame(unknown: Collection[str], findings: Sequence[Finding], settings: Settings) -> str:
    """Return a line on the packages of ``--leakcheck-blame`` that the tests do not use; empty if there is none.

    Args:
        unknown: Those that no process with a test has imported.
        findings: The findings; a package on the call path of one of them is in use.
        settings: The settings of the session.
    """
    frames = [site for finding in findings if finding.culprit is not None for site in finding.culprit.frames]
    names = [name for name in settings.blame if name in unknown and not touches(frames, (name,))]
    if not names:
        return ""
    flag, source = "--leakcheck-blame=", settings.sources["blame"]
    given = (
        f"{flag if settings.from_command_line('blame') else 'leakcheck_blame = '}{','.join(settings.blame)} ({source})"
    )
    return (
        f"leakcheck: {given}: no imported file is in {' or '.join(map(repr, names))}, so no leak there can fail a test. "
        "Name packages, modules or folders that the tests import"
    )


def summary_lines(findings: Sequence[Finding], tally: Tally, wanted: str, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    """Yield the lines of the section as (color, text).

    Args:
        findings: The findings, in order of arrival; those with equal fingerprints share a line. Green ones may be
            missing if they are not wanted.
        tally: All tests.
        wanted: ``failed`` leaves out green findings; ``sensitivity`` adds, per resource, the smallest leak that all of
            the green findings exclude; ``all`` lists each green finding; ``none`` yields nothing.
        glyphs: The characters that the output stream can show.
    """
    if wanted == "none":
        return
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.colour != "green":
            groups.setdefault(finding.fingerprint, []).append(finding)
    for fingerprint, group in groups.items():
        first = group[0]
        others = len({finding.test for finding in group}) - 1
        times = f" ({len(group)} times)" if len(group) > 1 else ""
        tests = first.test + (f" and {others} more" if others else times)
        line = headline(first, glyphs, WIDTH - _FINGERPRINT_DIGITS - 2)
        yield first.colour, f"{fingerprint[:_FINGERPRINT_DIGITS]}  {line}"
        yield "dim", shorten(f"  {tests}", WIDTH, glyphs)
        if first.colour == "yellow":
            # A red finding has a block of its own in the output; a yellow one is explained only here.
            reason = "" if line.endswith(first.verdict.reason) else first.verdict.reason
            yield from _wrap_dim("; ".join(filter(None, (reason, first.verdict.advice))))
    yield from _green_lines([finding for finding in findings if finding.colour == "green"], wanted, glyphs)
    for name, reason in tally.unavailable.items():
        yield from _wrap_dim(f"not read here: {name} ({reason})")


def _green_lines(green: Sequence[Finding], wanted: str, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    if wanted == "sensitivity" and (floors := _format_floors(green)):
        yield from _wrap_dim(f"sensitivity (each ok test would have caught): {floors}")
    if wanted != "all":
        return
    for finding in green:
        yield "green", shorten(f"ok  {finding.test}", WIDTH, glyphs)
        if floors := _format_floors([finding]):
            yield from _wrap_dim(f"would have caught {floors}")
        for verdict in finding.verdicts:
            if verdict.reason:
                yield from _wrap_dim(f"{with_kind(verdict.resource, verdict.kind)}: {verdict.reason}")


def _format_floors(findings: Sequence[Finding]) -> str:
    """Format the weakest detection floor of each resource, per iteration or per unit of an axis.

    A detection floor is the smallest growth that a run would have detected. The weakest is the highest.
    """
    weakest: dict[tuple[str, str], Verdict] = {}
    for finding in findings:
        for verdict in finding.verdicts:
            kind = (verdict.resource, per(finding))
            known = weakest.get(kind)
            if verdict.floor is not None and (known is None or verdict.floor > (known.floor or 0)):
                weakest[kind] = verdict
    # Resources with the same floor are listed together, because most exactly counted resources have the same one.
    names: dict[str, list[str]] = {}
    for (resource, one), verdict in weakest.items():
        names.setdefault(floor_text(verdict, one), []).append(
            with_kind(resource.removeprefix(GAUGE_PREFIX), verdict.kind)
        )
    return "; ".join(f"{', '.join(resources)} {floor}" for floor, resources in names.items())


def _wrap_dim(text: str) -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(text, WIDTH - 2):
        yield "dim", f"  {line}"
