"""Compare the findings of an arm with the expectations in the catalog.

An arm is one variant of an incident's code, such as the leaky or the fixed one. The results are plain values; other
modules write them to the terminal, to an HTML page or as JSON for scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.resources import HEAP, THREADS, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.report.culprit_text import place
from pytest_leakcheck.report.json_file import Entry
from pytest_leakcheck.repro.run_arm import Run

if TYPE_CHECKING:
    from leakcheck_incidents.catalog import Expectation, Incident

_RED: Final = "red"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of checking one expectation.

    Attributes:
        expected: The expectation.
        found: The finding compared with it, as in the JSON report; None if the report has none. If the options of the
            run change its figures, the finding may be about another resource.
        right: Whether the finding meets the expectation.
        text: The result in one line; a wrong finding is described in a second line.
    """

    expected: Expectation
    found: Entry | None
    right: bool
    text: str


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The result of one arm.

    Attributes:
        run: The pytest run of the arm.
        checks: One for each expectation of the arm.
        recordings: Recorded readings, by test.
    """

    run: Run
    checks: tuple[Check, ...]
    recordings: Mapping[str, Recording]

    @property
    def right(self) -> int:
        """Number of expectations that were met."""
        return sum(check.right for check in self.checks)

    @property
    def is_as_it_must(self) -> bool:
        """Whether the arm has expectations and all of them were met."""
        return bool(self.checks) and self.right == len(self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON types: findings, causes, and the comparison."""
        return {
            "arm": self.run.arm,
            "status": self.run.status,
            "partial": self.run.interrupted,
            "as_it_must": self.is_as_it_must,
            "findings": [_finding_to_json(one) for one in self.run.findings],
        }


def check_arm(incident: Incident, run: Run, *, changed: bool) -> ArmResult:
    """Compare the findings of an arm with its expectations.

    Args:
        incident: The incident that was run.
        run: The pytest run of the arm.
        changed: Whether the options of the run change its figures. If so, a finding is compared only by color: whether
            it is red, as expected.

    Returns:
        The result of the arm.
    """
    checks = tuple(_check_expectation(incident, one, run.findings, changed=changed) for one in incident.arms[run.arm])
    recordings = {one.test: one for one in run.report.recordings} if run.report else {}
    return ArmResult(run, checks, recordings)


def is_red(incident: Incident, arm: str) -> bool:
    """Return whether any verdict expected of an arm is not ``ok``."""
    return any(one.verdict != "ok" for one in incident.arms[arm])


def _check_expectation(incident: Incident, expected: Expectation, findings: Sequence[Entry], *, changed: bool) -> Check:
    of_test = [one for one in findings if expected.test in one.test]
    found = next((one for one in of_test if one.resource == expected.resource), None)
    what = f"{expected.test}: {expected.resource} {expected.verdict}"
    if changed:
        # With other options, another counter may show the leak first.
        found = next((one for one in of_test if one.colour == _RED), found)
        right = found is not None and (found.colour == _RED) == (expected.verdict not in ("ok", "inconclusive"))
    else:
        right = found is not None and _is_as_expected(expected, found)
    if found is None:
        return Check(expected, None, False, f"UNEXPECTED  {what}: no verdict")
    text = f"{'as expected' if right else 'UNEXPECTED'}  {what}{_format_figures(incident, found)}"
    if not right:
        text += f"\n    found {found.resource} {found.verdict}: {found.reason}"
    return Check(expected, found, right, text)


def _is_as_expected(expected: Expectation, found: Entry) -> bool:
    return bool(found.verdict == expected.verdict and (expected.slope is None or found.slope == expected.slope))


def _format_figures(incident: Incident, found: Entry) -> str:
    """Format the growth of a finding per iteration; empty for ``ok``.

    For a leak, add the growth of heap and threads, if they grew as well, per part that an iteration creates.
    """
    if found.verdict == "ok":
        return ""
    name, count = incident.part
    unit = find_resource(found.resource).unit
    text = f", {format_amount(found.slope, unit)} per {incident.iteration}"
    seen = {one.resource: one.slope / count for one in found.seen}
    parts = [
        f"{format_amount(seen[resource], find_resource(resource).unit)} {word}"
        for resource, word in ((HEAP, "of heap"), (THREADS, "threads"))
        if seen.get(resource, 0) > 0 and found.verdict == "leak"
    ]
    return f"{text}; {' and '.join(parts)} per {name}" if parts else text


def _finding_to_json(found: Entry) -> dict[str, Any]:
    site, owner = found.site, found.owner
    return {
        "test": found.test,
        "resource": found.resource,
        "verdict": found.verdict,
        "slope": found.slope,
        "site": place(site) if site else None,
        "owner": owner.name if owner else None,
    }
