"""Describe a finding as properties of its test in JUnit's XML, for readers that do not parse the text of a failure."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.report.culprit_text import place
from pytest_leakcheck.report.finding_text import floors_text, per


def properties(finding: Finding) -> list[tuple[str, str]]:
    """Return names and values of the properties.

    A green test has one, so that the file of a large suite stays small: ``leakcheck.floor``, the growth that would have
    been caught, or ``leakcheck`` if there is none. Another test has ``leakcheck.<resource>`` for each verdict that is
    not green, ``leakcheck.finding`` (its fingerprint, as in the JSON report), and where they are known
    ``leakcheck.site`` and ``leakcheck.known`` (the entry in the file of known leaks).
    """
    if finding.colour == "green":
        # pytest keeps the properties of all tests, and most tests have the same floors.
        floors = sys.intern(floors_text([finding]))
        return [("leakcheck.floor", floors)] if floors else [("leakcheck", "ok")]
    return list(_iter_properties(finding))


def _iter_properties(finding: Finding) -> Iterator[tuple[str, str]]:
    for verdict in finding.verdicts:
        if verdict.colour != "green":
            slope = f"{verdict.slope:g}/{per(finding)}" if verdict.slope else ""
            growth = verdict.law.order if verdict.law else slope
            yield f"leakcheck.{verdict.resource}", f"{verdict.outcome} {growth}".strip()
    yield "leakcheck.finding", finding.fingerprint
    if finding.site is not None:
        yield "leakcheck.site", place(finding.site)
    if finding.known:
        yield "leakcheck.known", finding.known
