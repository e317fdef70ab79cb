"""Compare the findings of an arm with the expectations in the catalog.

An arm is one variant of an incident's code, such as the leaky or the fixed one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import HEAP, THREADS, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.culprit_text import place
from pytest_leakcheck.repro.run_arm import Run

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Expectation, Incident

_RED: Final = "red"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one expectation; a wrong verdict is described in a second line of `text`.

    `found` is the verdict compared, with its finding; None if the report has none. If the options of the run change its
    figures, the verdict may be on another resource.
    """

    expected: Expectation
    found: tuple[Finding, Verdict] | None
    right: bool
    text: str


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The result of one arm, with a check for each of its expectations."""

    run: Run
    checks: tuple[Check, ...]

    @property
    def right(self) -> int:
        """Number of expectations that were met."""
        return sum(check.right for check in self.checks)

    @property
    def is_as_it_must(self) -> bool:
        """Whether the arm has expectations and all of them were met."""
        return bool(self.checks) and self.right == len(self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON types: verdicts, causes, and the comparison."""
        return {
            "arm": self.run.arm,
            "status": self.run.status,
            "partial": self.run.interrupted,
            "as_it_must": self.is_as_it_must,
            "verdicts": [_verdict_to_json(finding, verdict) for finding, verdict in self.run.verdicts],
        }


def check_arm(incident: Incident, run: Run, *, changed: bool) -> ArmResult:
    """Compare the findings of an arm with its expectations.

    If the options `changed` the figures, only the colour of a verdict is compared: whether it is red, as expected.
    """
    return ArmResult(run, tuple(_check(incident, one, run, changed=changed) for one in incident.arms[run.arm]))


def is_red(incident: Incident, arm: str) -> bool:
    """Return whether any verdict expected of an arm is not ``ok``."""
    return any(one.verdict != "ok" for one in incident.arms[arm])


def _check(incident: Incident, expected: Expectation, run: Run, *, changed: bool) -> Check:
    of_test = [one for one in run.verdicts if expected.test in one[0].test]
    found = next((one for one in of_test if one[1].resource == expected.resource), None)
    what = f"{expected.test}: {expected.resource} {expected.verdict}"
    if changed:
        # With other options, another counter may show the leak first.
        found = next((one for one in of_test if one[1].colour == _RED), found)
    if found is None:
        return Check(expected, None, False, f"UNEXPECTED  {what}: no verdict")
    finding, verdict = found
    if changed:
        right = (verdict.colour == _RED) == (expected.verdict not in ("ok", "inconclusive"))
    else:
        right = verdict.outcome == expected.verdict and expected.slope in (None, verdict.slope)
    text = f"{'as expected' if right else 'UNEXPECTED'}  {what}{_format_figures(incident, finding, verdict)}"
    if not right:
        text += f"\n    found {verdict.resource} {verdict.outcome}: {verdict.reason}"
    return Check(expected, found, right, text)


def _format_figures(incident: Incident, finding: Finding, verdict: Verdict) -> str:
    """Format the growth per iteration; for a leak, add that of heap and threads per part that an iteration creates."""
    if verdict.outcome == "ok":
        return ""
    name, count = incident.part
    unit = find_resource(verdict.resource).unit
    text = f", {format_amount(verdict.slope, unit)} per {incident.iteration}"
    seen = {one.resource: one.slope / count for one in finding.seen} if verdict is finding.verdict else {}
    parts = [
        f"{format_amount(seen[resource], find_resource(resource).unit)} {word}"
        for resource, word in ((HEAP, "of heap"), (THREADS, "threads"))
        if seen.get(resource, 0) > 0 and verdict.outcome == "leak"
    ]
    return f"{text}; {' and '.join(parts)} per {name}" if parts else text


def _verdict_to_json(finding: Finding, verdict: Verdict) -> dict[str, Any]:
    """Return a verdict with the cause, which only the worst verdict of a finding has."""
    site, owner = (finding.site, finding.owner) if verdict is finding.verdict else (None, None)
    return {
        "test": finding.test,
        "resource": verdict.resource,
        "verdict": verdict.outcome,
        "slope": verdict.slope,
        "site": place(site) if site else None,
        "owner": owner.name if owner else None,
    }
