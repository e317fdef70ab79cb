"""The verdict on a whole test: the value that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from pytest_leakcheck.model.culprit import Culprit, Held, fingerprint
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.scaling_points import Law, Scaled
from pytest_leakcheck.model.verdict import Verdict

Colour: TypeAlias = Literal["green", "yellow", "red"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A counter that moved and was not judged."""

    resource: str
    slope: float
    level: int


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one test.

    Attributes:
        test: The node id.
        colour: ``red`` fails the test; ``yellow`` is shown and passes; ``green``.
        verdict: The worst of all.
        verdicts: All of them, in the order of judgement.
        colours: What each verdict comes to, in the same order.
        budgets: What was allowed, as text, by resource.
        seen: Counters that rose and were not judged.
        held: Survivors by resource.
        recording: The readings.
        reasons: The reasons that budgets give, by resource.
        culprit: What is known of the cause of the worst verdict.
        third_party: Why a red is none of those who are to blame (``--leakcheck-blame``); empty where that was not asked.
        scaled: What it came to at each size, where it was run over an axis.
        laws: The law that each verdict is about, in the order of the verdicts; None for one about something else.
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
        """That of the worst verdict."""
        return self.laws[self.verdicts.index(self.verdict)] if self.laws else None

    @property
    def fingerprint(self) -> str:
        """Equal for the same cause in any test on any machine (`culprit.fingerprint`)."""
        return fingerprint(self.test, self.verdict.resource, self.verdict.outcome, self.culprit)

    @property
    def missing(self) -> str:
        """Which budgets of the user's could not be judged here, and why; a test must not pass on them."""
        return "; ".join(
            f"{one.resource}: {one.reason}" for one in self.verdicts if one.outcome == "unavailable" and one.explicit
        )

    def ended_by(self, reason: str) -> Finding:
        """The same with what the process came to afterwards, which was on its way to that."""
        worst = self.verdict.adding(f"then {reason}")
        verdicts = tuple(worst if verdict == self.verdict else verdict for verdict in self.verdicts)
        return replace(self, verdict=worst, verdicts=verdicts)
