"""Write all findings of a session to one JSON file, and read it back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.culprit import Culprit, Held, Owner, Site
from pytest_leakcheck.model.decoding import DecodeError, decode, encode
from pytest_leakcheck.model.finding import Colour, Finding, Seen
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES, Kind, Resource, added_rows
from pytest_leakcheck.model.scaling_points import Law, Scaled
from pytest_leakcheck.model.verdict import Outcome, Verdict
from pytest_leakcheck.report.output_file import check_writable as check_writable
from pytest_leakcheck.report.output_file import write_whole

_REWRITE_ADVICE: Final = "Write a new one: pytest --leakcheck --leakcheck-json=FILE"


@dataclass(frozen=True, slots=True)
class Peak:
    """The peak of a resource above its start level, at one size of the axis (an argument that takes growing sizes)."""

    size: int
    peak: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One verdict of a finding.

    Amounts are in the unit of the resource. Slope and floor (the smallest growth that the run would have detected) are
    per iteration, or per unit of the axis. Only the worst verdict of a finding has a cause (`site`, `owner` and
    `culprit`), `third_party`, a `fingerprint`, and `seen`.

    Attributes:
        site: The line to change; None if it is unknown. ``culprit.unresolved`` may then give the reason.
        owner: The object that retains the growth; None if it is unknown, as for `site`.
        culprit: The whole cause, with call path, phase, fixture, the line that stores the resource, cycle and hint.
    """

    test: str
    resource: str
    verdict: Outcome
    colour: Colour
    slope: float
    level: int
    floor: float | None
    iterations: int
    peak: bool
    kind: Kind
    site: Site | None
    owner: Owner | None
    culprit: Culprit | None
    third_party: str
    held: tuple[Held, ...]
    fingerprint: str | None
    reason: str
    law: Law | None
    points: tuple[Peak, ...]
    seen: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """The file's content.

    Attributes:
        findings: One per verdict.
        recordings: One per finding.
        scaled: The peaks at each size for each test that was run over an axis, by test.
        resources: The traits of the counters that the project has added, by name.
    """

    SCHEMA: ClassVar[int] = 2

    findings: tuple[Entry, ...]
    recordings: tuple[Recording, ...]
    scaled: Mapping[str, Scaled]
    resources: Mapping[str, Resource]


class ReportError(LeakcheckError, ValueError):
    """The file is not a report of findings; the message states what is wrong with it."""


def parse(data: object) -> Document:
    """Convert the decoded JSON of a file to the document that was written.

    Raises:
        ReportError: The data is not a report of findings, has another schema version, or is damaged.
    """
    if not isinstance(data, dict) or not isinstance(data.get("findings"), list):
        raise ReportError("not a report of findings: write one with pytest --leakcheck --leakcheck-json=FILE")
    try:
        document = decode(Document, data)
        for at, entry in enumerate(document.findings):
            _check_resource(entry.resource, document.resources, at)
    except DecodeError as error:
        raise ReportError(f"damaged report: {error}. {_REWRITE_ADVICE}") from None
    return document


def _check_resource(name: str, added: Mapping[str, Resource], at: int) -> None:
    if name not in added and name not in RESOURCES and not name.startswith(GAUGE_PREFIX):
        valid = f"one of {', '.join(RESOURCES)} or {GAUGE_PREFIX}NAME"
        raise DecodeError(f"findings[{at}].resource: expected {valid}, got {name!r}")


def document(findings: Sequence[Finding]) -> Document:
    """Build the document from the findings of a session."""
    return Document(
        tuple(
            _entry(finding, verdict, colour)
            for finding in findings
            for verdict, colour in zip(finding.verdicts, finding.colours, strict=True)
        ),
        tuple(finding.recording for finding in findings),
        {finding.test: finding.scaled for finding in findings if finding.scaled is not None},
        added_rows(verdict.resource for finding in findings for verdict in finding.verdicts),
    )


def _entry(finding: Finding, verdict: Verdict, colour: Colour) -> Entry:
    worst, scaled = verdict == finding.verdict, finding.scaled
    culprit = finding.culprit if worst else None
    peaks = zip(scaled.sizes, scaled.peaks(verdict.resource, "total"), strict=True) if scaled is not None else ()
    return Entry(
        test=finding.test,
        resource=verdict.resource,
        verdict=verdict.outcome,
        colour=colour,
        slope=verdict.slope,
        level=verdict.level,
        floor=verdict.floor,
        iterations=verdict.iterations,
        peak=verdict.peak,
        kind=verdict.kind,
        site=culprit.site if culprit else None,
        owner=culprit.owner if culprit else None,
        culprit=culprit,
        third_party=finding.third_party if worst else "",
        held=finding.held.get(verdict.resource, ()),
        fingerprint=finding.fingerprint if worst else None,
        reason=verdict.reason,
        law=finding.laws[finding.verdicts.index(verdict)] if finding.laws else None,
        points=tuple(Peak(size, peak) for size, peak in peaks),
        seen=finding.seen if worst else (),
    )


def write(path: Path, findings: Sequence[Finding]) -> None:
    """Write the document to the path (`output_file.write_whole`).

    Raises:
        OSError: The file cannot be written. A file that existed before is still there.
    """
    write_whole(path, json.dumps(encode(document(findings)), indent=1, ensure_ascii=False) + "\n")
