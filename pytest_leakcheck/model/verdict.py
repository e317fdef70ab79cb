"""Describe the verdict on one resource of one test."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, TypeAlias

from pytest_leakcheck.model.resources import Kind, OfResource
from pytest_leakcheck.model.scaling_points import Law

Outcome: TypeAlias = Literal["ok", "leak", "over_budget", "unclosed", "inconclusive", "unavailable"]

Colour: TypeAlias = Literal["green", "yellow", "red"]

# Outcomes that mean a leak, or more of a resource than is allowed. They fail a test unless a setting or a
# known leak tolerates them.
RED: Final = frozenset({"leak", "over_budget", "unclosed"})
WORST_FIRST: Final = ("leak", "over_budget", "unclosed", "inconclusive", "unavailable", "ok")


@dataclass(frozen=True, slots=True)
class Verdict(OfResource):
    """One verdict on one resource.

    Attributes:
        resource: The name of the resource, as in the series.
        outcome: ``ok``, ``leak`` (sustained growth), ``over_budget`` (a level, peak or law above the budget),
            ``unclosed`` (released only by the garbage collector), ``inconclusive``, or ``unavailable`` (the resource
            cannot be read).
        slope: Sustained growth per iteration, in the unit of the resource; for ``unclosed``, the amount that the
            garbage collector released per iteration.
        level: The settled level above the start level, in the unit of the resource.
        iterations: The number of iterations that the verdict is based on.
        floor: For ``ok``: the smallest sustained growth per iteration that this run would have detected.
        reason: The observation in one sentence; for ``inconclusive``, what is missing.
        advice: A recommendation; may be empty.
        explicit: The test names this resource, so an outcome that is otherwise only reported may fail the test.
        tolerated: The outcome is reported, but never fails the test.
        peak: The verdict is on the peak of the resource in one run, and `level` is that peak.
        kind: How the readings were obtained.
        law: How the peak grows with the size, if the verdict is about that.
        colour: ``red`` fails the test; ``yellow`` is reported, but passes; ``green`` passes. The settings of the session
            decide; None until then.
    """

    SPARSE: ClassVar = True

    resource: str
    outcome: Outcome = field(metadata={"key": "verdict"})
    slope: float = 0.0
    level: int = 0
    iterations: int = 0
    floor: float | None = None
    reason: str = ""
    advice: str = ""
    explicit: bool = True
    tolerated: bool = False
    peak: bool = False
    kind: Kind = "measured"
    law: Law | None = None
    colour: Colour | None = None

    def adding(self, text: str) -> Verdict:
        """Return a copy with a text appended to the reason; an empty text changes nothing."""
        return replace(self, reason="; ".join(filter(None, (self.reason, text)))) if text else self
