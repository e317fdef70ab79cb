"""All findings of a session as one JSON file, for scripts and for later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.finding import Colour, Finding
from pytest_leakcheck.report.destination import check_writable as check_writable
from pytest_leakcheck.report.destination import write_whole
from pytest_leakcheck.verdict import Verdict

SCHEMA: Final = 1


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """The file's content: ``findings`` has one object per verdict, ``recordings`` one per test.

    A finding has ``test resource verdict kind colour slope level floor iterations site owner held fingerprint reason``;
    amounts are in the unit of the resource, per iteration for slope and floor.

    ``site`` is the line to change, ``{file, line, function, call}``; ``owner`` who holds it, ``{name, path, holds,
    gained}``. Each is null where it is not resolved, and ``culprit.unresolved`` then says why; ``culprit`` has the rest:
    the whole call path, phase and fixture, the line that keeps it, the cycle, the hint.
    """
    return {
        "schema": SCHEMA,
        "findings": [
            _entry(finding, verdict, colour)
            for finding in findings
            for verdict, colour in zip(finding.verdicts, finding.colours, strict=True)
        ],
        "recordings": [finding.recording.to_json() for finding in findings],
        "scaled": {finding.test: finding.scaled.to_json() for finding in findings if finding.scaled is not None},
    }


def _entry(finding: Finding, verdict: Verdict, colour: Colour) -> dict[str, Any]:
    worst = verdict == finding.verdict
    law = finding.laws[finding.verdicts.index(verdict)] if finding.laws else None
    culprit = finding.culprit if worst else None
    known = culprit.to_json() if culprit else None
    return {
        "test": finding.test,
        "resource": verdict.resource,
        "verdict": verdict.outcome,
        "colour": colour,
        "slope": verdict.slope,
        "level": verdict.level,
        "floor": verdict.floor,
        "iterations": verdict.iterations,
        "peak": verdict.peak,
        "kind": verdict.kind,
        "site": asdict(culprit.site) if culprit and culprit.site else None,
        "owner": known["owner"] if known else None,
        "culprit": known,
        "third_party": finding.third_party if worst else "",
        "held": [
            {"what": one.what, "count": one.count, "note": one.note} for one in finding.held.get(verdict.resource, ())
        ],
        "fingerprint": finding.fingerprint if worst else None,
        "reason": verdict.reason,
        "law": law and law.to_json(),
        "points": [
            {"size": size, "peak": peak}
            for size, peak in zip(finding.scaled.sizes, finding.scaled.peaks(verdict.resource, "total"), strict=True)
        ]
        if finding.scaled is not None
        else [],
        "seen": [{"resource": s.resource, "slope": s.slope, "level": s.level} for s in finding.seen] if worst else [],
    }


def write(path: Path, findings: Sequence[Finding]) -> None:
    """Write the document where the path leads (`destination.write_whole`).

    Raises:
        OSError: It could not be written; an earlier file is then still there.
    """
    write_whole(path, json.dumps(document(findings), indent=1, ensure_ascii=False) + "\n")
