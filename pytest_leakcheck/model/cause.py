"""Group findings by cause: what grows, where, how fast, and in which tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pytest_leakcheck.model.culprit import Owner, Site
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import OfResource
from pytest_leakcheck.model.units import format_rates
from pytest_leakcheck.model.verdict import Colour, Outcome


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
    """Return what the findings of one cause share: the fingerprint or the entry of known leaks, and the outcome."""
    return finding.known or finding.fingerprint, finding.verdict.outcome


class Causes:
    """Causes of the findings that are added, whose readings are not kept; green findings have none."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        self._causes: dict[tuple[str, Outcome], Cause] = {}
        # In the order of arrival, each once: a test that judges several loops may have several findings.
        self._tests: dict[tuple[str, Outcome], dict[str, None]] = {}
        for finding in findings:
            self.add(finding)

    def add(self, finding: Finding) -> None:
        if finding.colour == "green":
            return
        key, verdict = key_of_cause(finding), finding.verdict
        slope, known = verdict.slope, bool(finding.known)
        first = Cause(key[0], verdict.resource, verdict.outcome, finding.colour, known, slope, slope)
        one = self._causes.get(key, first)
        self._causes[key] = replace(
            one,
            slowest=min(one.slowest, slope),
            fastest=max(one.fastest, slope),
            site=one.site or finding.site,
            owner=one.owner or finding.owner,
        )
        self._tests.setdefault(key, {})[finding.test] = None

    def list(self) -> tuple[Cause, ...]:
        """Return the causes, red ones first, else in order of arrival."""
        causes = [replace(one, tests=tuple(self._tests[key])) for key, one in self._causes.items()]
        return tuple(sorted(causes, key=lambda one: one.colour != "red"))
