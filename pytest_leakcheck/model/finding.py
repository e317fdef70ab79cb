"""Describe what was found in one test: the value that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pytest_leakcheck.model.culprit import Culprit, Held, Owner, Site, fingerprint
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.scaling_points import Scaled
from pytest_leakcheck.model.verdict import Colour, Verdict


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
    """What was found in one test.

    Attributes:
        test: The node id.
        verdicts: At least one; the worst comes first, the others follow in the order of judgment.
        budgets: The allowed amounts as text, by resource.
        seen: Counters that rose but were not judged.
        held: What survived the iterations, by resource.
        recording: The readings.
        reasons: The reasons given in the budgets, by resource.
        culprit: The known cause of the worst verdict.
        third_party: Why a verdict that would be red is yellow: no suspect line is in the packages of
            ``--leakcheck-blame``, or it is a known leak of an installed package. Else empty.
        known: The id of the entry in the file of known leaks, if a verdict that would be red is yellow for it.
        out_of_time: Resources without a verdict, because the time for the test was over. They are left out only of a
            test without a mark, which is judged on the others.
        scaled: The peaks at each size, if the test was run over an axis.
        snapshot: The file with torch's memory snapshot, of a leak on a CUDA device; empty if there is none.
        snapshot_error: Why it could not be written, or why it lacks the history of allocations; else empty.
    """

    SPARSE: ClassVar = True
    DERIVED: ClassVar = ("colour", "fingerprint", "site", "owner")

    test: str
    verdicts: tuple[Verdict, ...]
    budgets: Mapping[str, str]
    seen: tuple[Seen, ...]
    held: Mapping[str, tuple[Held, ...]]
    recording: Recording
    reasons: Mapping[str, str]
    culprit: Culprit | None = None
    third_party: str = ""
    known: str = ""
    out_of_time: tuple[str, ...] = ()
    scaled: Scaled | None = None
    snapshot: str = ""
    snapshot_error: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.verdicts[0]

    @property
    def colour(self) -> Colour:
        """The colour of the worst verdict, and so of the test."""
        return self.verdict.colour or "green"

    @property
    def site(self) -> Site | None:
        """The line to change; None if it is unknown."""
        return self.culprit.site if self.culprit is not None else None

    @property
    def owner(self) -> Owner | None:
        """The object that retains the growth; None if it is unknown."""
        return self.culprit.owner if self.culprit is not None else None

    @property
    def fingerprint(self) -> str:
        """An identifier of the cause; the same cause has the same one on all machines (`culprit.fingerprint`)."""
        return fingerprint(self.test, self.verdict.resource, self.culprit)

    @property
    def missing(self) -> str:
        """The explicit budgets that could not be judged here, with reasons; unless empty, the test must not pass."""
        return "; ".join(
            f"{one.resource}: {one.reason}" for one in self.verdicts if one.outcome == "unavailable" and one.explicit
        )
