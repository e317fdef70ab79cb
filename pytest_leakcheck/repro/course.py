"""The course of an arm: what it has told so far, as a row per test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from pytest_leakcheck.repro.arm import Event

State: TypeAlias = Literal["running", "measuring", "naming", "over"]


@dataclass(frozen=True, slots=True)
class Row:
    """One test.

    Attributes:
        test: Its node id, without the file.
        state: What it is at.
        iteration: The last one that was told.
        most: There will be no more than so many.
        began_at: The first iteration that was told.
        start: What the counters stood at then, by resource.
        levels: What they stand at.
        verdicts: What was decided so far, by resource.
        outcome: How pytest reports it, once it is over.
    """

    test: str
    state: State = "running"
    iteration: int = 0
    most: int = 0
    began_at: int = 0
    start: Mapping[str, int] = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    outcome: str = ""

    def gained(self, resource: str) -> int:
        """Since the first iteration that was told."""
        return self.levels.get(resource, 0) - self.start.get(resource, 0)

    def slope(self, resource: str) -> float:
        """Per iteration since then: plain, of two readings; the verdict rests on more."""
        ran = self.iteration - self.began_at
        return self.gained(resource) / ran if ran > 0 else 0.0


def advance(rows: Mapping[str, Row], events: Iterable[Event]) -> dict[str, Row]:
    """The rows after some more was told, in the order in which the tests began."""
    rows = dict(rows)
    for event in events:
        test = event["test"]
        row = rows.get(test, Row(test))
        if event["event"] == "progress" and row.state != "over":
            if not row.start:
                row = replace(row, began_at=event["iteration"], start=event["levels"])
            row = replace(
                row,
                state=event["state"],
                iteration=event["iteration"],
                most=event["most"],
                levels=event["levels"],
                verdicts=event["verdicts"],
            )
        elif event["event"] == "end":
            ran = event["iteration"] or row.iteration
            verdicts = event["verdicts"] or row.verdicts
            row = replace(row, state="over", iteration=ran, verdicts=verdicts, outcome=event["outcome"])
        rows[test] = row
    return rows
