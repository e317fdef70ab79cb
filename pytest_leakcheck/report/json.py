"""All findings of a session as one JSON file, for scripts and for later."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.finding import Colour, Finding
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


def check_writable(path: Path) -> str:
    """Why a report cannot be written there, or nothing. Leaves no trace, and what stands there untouched."""
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists() and not os.access(path, os.W_OK):
            return "exists and may not be written"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def write(path: Path, findings: Sequence[Finding]) -> None:
    """Write the file whole or not at all: a reader never sees half a report.

    Raises:
        OSError: The folder went away, or the disk is full; an earlier file is then still there.
    """
    text = json.dumps(document(findings), indent=1, ensure_ascii=False)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        # A file's name may hold bytes that are no UTF-8; written with a backslash they are an escape that JSON knows.
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
