"""Describe the verdict on a whole test: the value that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_leakcheck.model.culprit import Culprit, Held, fingerprint
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.scaling_points import Law, Scaled
from pytest_leakcheck.model.verdict import Verdict

Colour: TypeAlias = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A counter that rose but was not judged.

    Attributes:
        resource: The name of the resource.
        slope: Growth per iteration, in the unit of the resource.
        level: The last reading minus the first one, in the unit of the resource.
    """

    resource: str
    slope: float
    level: int


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one test.

    Attributes:
        test: The node id.
        colour: ``red`` fails the test; ``yellow`` is reported, but passes; ``green`` passes.
        verdict: The worst verdict.
        verdicts: All verdicts, in the order of judgment.
        colours: The color of each verdict, in the same order.
        budgets: The allowed amounts as text, by resource.
        seen: Counters that rose but were not judged.
        held: What survived the iterations, by resource.
        recording: The readings.
        reasons: The reasons given in the budgets, by resource.
        culprit: The known cause of the worst verdict.
        third_party: If no suspect line is in the packages of ``--leakcheck-blame``: the reason why a verdict that would
            be red is yellow. Else empty.
        scaled: The peaks at each size, if the test was run over an axis.
        laws: The scaling law of each verdict, in the same order; None for a verdict that is not about a law.
    """

    test: str
    colour: Colour
    verdict: Verdict
    verdicts: tuple[Verdict, ...]
    colours: tuple[Colour, ...]
    budgets: Mapping[str, str]
    seen: tuple[Seen, ...]
    held: Mapping[str, tuple[Held, ...]]
    recording: Recording
    reasons: Mapping[str, str]
    culprit: Culprit | None = None
    third_party: str = ""
    scaled: Scaled | None = None
    laws: tuple[Law | None, ...] = ()

    @property
    def law(self) -> Law | None:
        """The scaling law of the worst verdict."""
        return self.laws[self.verdicts.index(self.verdict)] if self.laws else None

    @property
    def fingerprint(self) -> str:
        """An identifier of the cause; the same cause has the same one on all machines (`culprit.fingerprint`)."""
        return fingerprint(self.test, self.verdict.resource, self.verdict.outcome, self.culprit)

    @property
    def missing(self) -> str:
        """The explicit budgets that could not be judged here, with reasons; may be empty.

        A test with such budgets must not pass.
        """
        return "; ".join(
            f"{one.resource}: {one.reason}" for one in self.verdicts if one.outcome == "unavailable" and one.explicit
        )
