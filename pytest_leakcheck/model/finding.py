"""Describe what was found in one test, which every report renders; group findings by cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, TypeAlias

from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Culprit, Fault, Owner, Remainder, Site, fingerprint
from pytest_leakcheck.model.recording import Law, Recording, Scaled
from pytest_leakcheck.model.resources import Kind, OfResource
from pytest_leakcheck.model.units import format_rates

Outcome: TypeAlias = Literal["ok", "leak", "over_budget", "unclosed", "inconclusive", "unavailable"]
Colour: TypeAlias = Literal["green", "yellow", "red"]
# Outcomes that mean a leak, or more of a resource than is allowed. They fail a test unless a
# setting or a known leak tolerates them.
RED: Final = frozenset({"leak", "over_budget", "unclosed"})
WORST_FIRST: Final = ("leak", "over_budget", "unclosed", "inconclusive", "unavailable", "ok")


@dataclass(frozen=True, slots=True)
class Verdict(OfResource):
    """One verdict on one resource.

    Attributes:
        resource: The name of the resource, as in the series.
        outcome: ``ok``, ``leak`` (sustained growth), ``over_budget`` (a level, peak or law above
            the budget), ``unclosed`` (released only by the garbage collector), ``inconclusive``, or
            ``unavailable`` (the resource cannot be read).
        slope: Sustained growth per iteration, in the unit of the resource; for ``unclosed``, the
            amount that the garbage collector released per iteration.
        level: The settled level above the start level, in the unit of the resource.
        iterations: The number of iterations that the verdict is based on.
        floor: For ``ok``: the smallest sustained growth per iteration that this run would have
            detected.
        reason: The observation in one sentence; for ``inconclusive``, what is missing.
        advice: A recommendation; may be empty.
        explicit: The test names this resource, so an outcome that is otherwise only reported may
            fail the test.
        tolerated: The outcome is reported, but never fails the test.
        peak: The verdict is on the peak of the resource in one run, and `level` is that peak.
        kind: How the readings were obtained.
        law: How the peak grows with the size, if the verdict is about that.
        colour: ``red`` fails the test; ``yellow`` is reported, but passes; ``green`` passes. The
            settings of the session decide; None until then.
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

    @property
    def is_growth(self) -> bool:
        """Whether it is growth that goes on, and not a level that is too high."""
        return self.outcome == "leak" or self.kind == "predicted"

    def adding(self, text: str) -> Verdict:
        """Return a copy with a text appended to the reason; an empty text changes nothing."""
        return replace(self, reason="; ".join(filter(None, (self.reason, text)))) if text else self


@dataclass(frozen=True, slots=True)
class UnjudgedGrowth(OfResource):
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
class FailingPaths:
    """The calls of the chosen functions that a test makes.

    Attributes:
        found: How many there are.
        judged: How many of them were made to raise, each with a finding of its own.
    """

    found: int
    judged: int


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
        third_party: Why a verdict that would be red is yellow: no suspect line is in the packages
            of ``--leakcheck-blame``, or it is a known leak of an installed package or of CPython.
            Else empty.
        known: The id of the entry in the file of known leaks, if a verdict that would be red is
            yellow for it.
        out_of_time: Resources without a verdict, because the time for the test was over. They are
            left out only of a test without a mark, which is judged on the others.
        scaled: The peaks at each size, if the test was run over an axis.
        snapshot: The file with torch's memory snapshot, of a leak on a CUDA device; empty if there
            is none.
        snapshot_error: Why it could not be written, or why it lacks the history of allocations;
            else empty.
        fault: The call that raises in each iteration, if the finding is on that failing path; None
            of the test as it is.
        failing: The calls that can raise; None of a failing path, and if no call was to.
    """

    SPARSE: ClassVar = True
    DERIVED: ClassVar = ("colour", "fingerprint", "site", "owner")

    test: str
    verdicts: tuple[Verdict, ...]
    budgets: Mapping[str, str]
    seen: tuple[UnjudgedGrowth, ...]
    held: Mapping[str, tuple[Remainder, ...]]
    recording: Recording
    reasons: Mapping[str, str]
    culprit: Culprit | None = None
    third_party: str = ""
    known: str = ""
    out_of_time: tuple[str, ...] = ()
    scaled: Scaled | None = None
    snapshot: str = ""
    snapshot_error: str = ""
    fault: Fault | None = None
    failing: FailingPaths | None = None

    def check(self) -> None:
        """Raise `InputError` for a value from a file if it has no verdict."""
        if not self.verdicts:
            raise InputError("verdicts: expected at least one, got none")

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
        """An identifier of the cause, the same on all machines (`culprit.fingerprint`)."""
        return fingerprint(self.test, self.verdict.resource, self.culprit, self.fault)

    @property
    def missing(self) -> str:
        """The explicit budgets that could not be judged here, with reasons.

        Unless this is empty, the test must not pass.
        """
        reasons = (
            f"{verdict.resource}: {verdict.reason}"
            for verdict in self.verdicts
            if verdict.outcome == "unavailable" and verdict.explicit
        )
        # A level and a peak are missing for the same reason.
        return "; ".join(dict.fromkeys(reasons))


@dataclass(frozen=True, slots=True)
class Cause(OfResource):
    """The findings with one fingerprint, entry of known leaks and outcome.

    Attributes:
        finding: The fingerprint, or the id of the entry of known leaks.
        resource: The resource that grows.
        outcome: The verdict.
        colour: Of the findings.
        known: Whether an entry of known leaks lists it.
        slowest: The lowest slope, per iteration, in the unit of the resource.
        fastest: The highest slope.
        site: The line to change in the first of the tests that shows one; None if none does.
        owner: The object that retains the growth, likewise.
        tests: The node ids, in order of arrival.
    """

    SPARSE: ClassVar = True

    finding: str
    resource: str
    outcome: Outcome = field(metadata={"key": "verdict"})
    colour: Colour
    known: bool = False
    slowest: float = 0.0
    fastest: float = 0.0
    site: Site | None = None
    owner: Owner | None = None
    tests: tuple[str, ...] = ()

    @property
    def rates(self) -> str:
        """The range of the slopes as text; empty if the verdict is on no growth."""
        if self.outcome not in ("leak", "unclosed"):
            return ""
        return format_rates((self.slowest, self.fastest), self.traits.unit)


def format_tests(tests: Sequence[str]) -> str:
    """Name the first of the tests, and how many more there are."""
    return tests[0] + (f" and {len(tests) - 1} more" if len(tests) > 1 else "")


def key_of_cause(finding: Finding) -> tuple[str, Outcome]:
    """Return what findings of one cause share: fingerprint or entry of known leaks, and outcome."""
    return finding.known or finding.fingerprint, finding.verdict.outcome


class Causes:
    """Causes of the added findings, whose readings are not kept; green findings have none."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._causes: dict[tuple[str, Outcome], Cause] = {}
        # In the order of arrival, each once: a test that judges several loops may have several
        # findings.
        self._tests: dict[tuple[str, Outcome], dict[str, None]] = {}
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        if finding.colour == "green":
            return
        key, verdict = key_of_cause(finding), finding.verdict
        slope, known = verdict.slope, bool(finding.known)
        first = Cause(
            key[0], verdict.resource, verdict.outcome, finding.colour, known, slope, slope
        )
        cause = self._causes.get(key, first)
        self._causes[key] = replace(
            cause,
            slowest=min(cause.slowest, slope),
            fastest=max(cause.fastest, slope),
            site=cause.site or finding.site,
            owner=cause.owner or finding.owner,
        )
        self._tests.setdefault(key, {})[finding.test] = None

    def list(self) -> tuple[Cause, ...]:
        """Return the causes, red ones first, else in order of arrival."""
        causes = [replace(one, tests=tuple(self._tests[key])) for key, one in self._causes.items()]
        return tuple(sorted(causes, key=lambda one: one.colour != "red"))
