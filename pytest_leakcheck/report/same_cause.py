"""Render the failures of tests whose cause has a block under an earlier test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_rates
from pytest_leakcheck.model.verdict import Outcome
from pytest_leakcheck.report.finding_text import WIDTH
from pytest_leakcheck.report.glyphs import Glyphs, printable, shorten

# Columns that the name of the first test has at least.
_MIN_NAME: Final = 20


@dataclass(frozen=True, slots=True)
class SameCause:
    """What is shown of a finding whose cause the test `first` has; the slope is 0 if the verdict is on no growth."""

    finding: str
    first: str
    outcome: Outcome
    resource: str
    slope: float

    @classmethod
    def of(cls, finding: Finding, first: str) -> SameCause:
        verdict = finding.verdict
        slope = verdict.slope if finding.scaled is None and verdict.outcome in ("leak", "unclosed") else 0.0
        return cls(finding.fingerprint, first, verdict.outcome, verdict.resource, slope)


def same_cause_line(tests: Sequence[SameCause], glyphs: Glyphs) -> str:
    """Return the line under one or several tests with one cause."""
    one = tests[0]
    begin = f"{one.outcome.replace('_', ' ').upper()} same as {short_id(one.finding)} ("
    rates = format_rates([test.slope for test in tests], find_resource(one.resource).unit)
    end = f"): {one.resource} {rates}" if one.slope else ")"
    room = max(_MIN_NAME, WIDTH - len(begin) - len(end))
    return printable(f"{begin}{shorten(one.first, room, glyphs)}{end}")
