"""What is said of one resource of one test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.resources import Kind

Outcome: TypeAlias = Literal["ok", "leak", "over_budget", "unclosed", "inconclusive", "unavailable"]

WORST_FIRST: Final = ("leak", "over_budget", "unclosed", "inconclusive", "unavailable", "ok")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one resource of one test.

    Attributes:
        resource: As in the series.
        outcome: ``ok``, ``leak``, ``over_budget``, ``unclosed``, ``inconclusive`` or ``unavailable``.
        slope: Sustained growth per iteration, in the unit of the resource; for ``unclosed`` what the collector gave
            back per iteration.
        level: How far it stands above the start, settled, in its unit.
        iterations: How many iterations the verdict rests on.
        floor: For ``ok``: the smallest sustained growth per iteration that this very run would have shown.
        reason: What was seen, in one sentence; for ``inconclusive`` what is missing.
        advice: What to do, where that can be said.
        explicit: The test names this resource, so yellow may be turned red.
        peak: It is about the highest that the resource came to in one run; `level` is that.
        kind: How the readings that it rests on came about.
    """

    resource: str
    outcome: Outcome
    slope: float = 0.0
    level: int = 0
    iterations: int = 0
    floor: float | None = None
    reason: str = ""
    advice: str = ""
    explicit: bool = True
    peak: bool = False
    kind: Kind = "measured"

    def adding(self, text: str) -> Verdict:
        """The same with more to its reason; itself where there is nothing to add."""
        return replace(self, reason="; ".join(filter(None, (self.reason, text)))) if text else self
