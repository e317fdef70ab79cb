"""Changes planted in a copy of the incidents: regressions, which must turn red, and refactorings, which must not."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from leakcheck_incidents.catalog import INCIDENTS
from projects import ROOT, Outcome, Project

_PACKAGE = "leakcheck_incidents"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an incident's fixed implementation, as one of its authors could make it.

    Attributes:
        what: What it does, in a few words.
        edits: By file of the incident's folder, pairs of a text that it has once and what replaces it.
        tests: The tests that judge it, as pytest's ``-k`` takes them, beside ``fixed``.
        options: Further options.
    """

    what: str
    edits: dict[str, list[tuple[str, str]]]
    tests: str = "fixed"
    options: tuple[str, ...] = ()


def judge_change(project: Project, name: str, change: Change) -> Outcome:
    """Run the fixed arm of an incident, with a change, by its own tests."""
    copy = project.folder / "changed" / _PACKAGE
    shutil.copytree(ROOT / "fixtures" / _PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    incident = INCIDENTS[name]
    for file, edits in change.edits.items():
        path = copy / incident.code / file
        text = path.read_text(encoding="utf-8")
        for old, new in edits:
            assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    ran = project.run(
        "--pyargs",
        incident.tests,
        "-k",
        f"fixed and ({change.tests})",
        *change.options,
        limit=900,
        PYTHONPATH=str(copy.parent),
    )
    assert ran.findings or ran.status, ran.text
    return ran


def red_findings(ran: Outcome) -> set[tuple[str, str, str]]:
    """Return the part after the last ``::`` of the test, the resource and the verdict of each red finding."""
    return {
        (one["test"].rpartition("::")[2], one["resource"], one["verdict"])
        for one in ran.findings
        if one["colour"] == "red"
    }
