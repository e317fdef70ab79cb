"""Qualify a verdict by what the readings do not show: whose growth it is, what is miscounted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.model.resources import DESCRIPTORS


@dataclass(frozen=True, slots=True)
class Provenance:
    """What is known of a count in addition to its readings.

    Texts are parts of a sentence; an empty one says nothing.

    Attributes:
        unknown: The number of entries in `folder` that count for no process, because their origin
            is unknown.
        folder: The path of the folder that is listed.
        uncounted: What may hold a part of the resource, and does not count.
        hidden: Why the count may miss what is new.
        foreign: Why the count includes what the test has not created.
        foreign_level: Up to which level that may be all, by outcome.
        grown_in: The process that has grown.
        on_devices: What the counters of each device say.
    """

    unknown: int = 0
    folder: str = ""
    uncounted: str = ""
    hidden: str = ""
    foreign: str = ""
    foreign_level: Mapping[Outcome, float] = field(default_factory=dict)
    grown_in: str = ""
    on_devices: str = ""


def qualify(verdict: Verdict, provenance: Provenance) -> Verdict:
    """Add what is known to a verdict: ``inconclusive`` if the count is not that of the test."""
    if verdict.outcome == "ok":
        if provenance.hidden:
            return _miscounted(verdict, provenance.hidden)
        if provenance.unknown:
            return _origin_unknown(verdict, provenance.unknown, provenance.folder)
        if provenance.uncounted:
            # An ``ok`` excludes nothing then.
            verdict = replace(verdict, floor=None).adding(provenance.uncounted)
    elif 0 < verdict.level <= provenance.foreign_level.get(verdict.outcome, 0):
        return _miscounted(verdict, provenance.foreign)
    else:
        verdict = verdict.adding(provenance.grown_in)
    return verdict.adding(provenance.on_devices)


def _miscounted(verdict: Verdict, reason: str) -> Verdict:
    """Return ``inconclusive`` for objects or descriptors whose counting the test has changed."""
    advice = "call it in a fixture of wider scope, or bound memory: heap_budget()"
    if verdict.resource == DESCRIPTORS:
        advice = "close or copy only descriptors that the test has opened"
    return replace(verdict, outcome="inconclusive", reason=reason, advice=advice, floor=None)


def _origin_unknown(verdict: Verdict, entries: int, path: str) -> Verdict:
    came = "1 entry" if entries == 1 else f"{entries} entries"
    how = "-n0, and no other session at the same time"
    if verdict.traits.handles == "files":
        how = "a private TMPDIR, or --leakcheck-isolate"
    return replace(
        verdict,
        outcome="inconclusive",
        reason=f"{came} of unknown origin in {path}: no audit event and no process that uses them shows who created them",
        advice=f"if the test creates them in C, it leaks them; else run it where no other process writes there: {how}",
        floor=None,
    )
