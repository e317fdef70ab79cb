"""Compare the findings of two sessions by cause: what is new, grown, the same, fixed, or was not measured again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak
from pytest_leakcheck.baseline.matching import KnownLeaks
from pytest_leakcheck.baseline.update import Observed, find_fixed, update
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.verdict import RED

Change: TypeAlias = Literal["new", "grown", "same", "fixed", "not measured"]

_NO_DATE = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """One cause, as of the later session, or of the earlier one if it is fixed or was not measured again.

    `was` is the growth per iteration in the earlier session, in the unit of the resource; 0 if the cause is new.
    """

    change: Change
    cause: KnownLeak
    was: float = 0.0


def baseline_of(findings: Iterable[Finding]) -> Baseline:
    """Return the leaks of a session as if they were known."""
    leaks = [finding for finding in findings if finding.verdict.outcome in RED]
    return update(Baseline(), Observed(leaks), _NO_DATE).baseline


def compare(earlier: Sequence[Finding], later: Sequence[Finding]) -> tuple[Difference, ...]:
    """Compare two sessions; the worst comes first.

    A cause is fixed if each test that showed it was judged again, is ok, and would have shown it.
    """
    before, now = baseline_of(earlier), baseline_of(later)
    known = KnownLeaks(before, _NO_DATE)
    again: dict[str, Difference] = {}
    differences: list[Difference] = []
    matches = {finding.fingerprint: known.match(finding) for finding in later if finding.verdict.outcome in RED}
    for cause in now.known:
        match = matches[cause.finding]
        if match.leak is None:
            differences.append(Difference("new", cause))
            continue
        change: Change = "grown" if match.state == "grown" else "same"
        again[match.leak.finding] = Difference(change, cause, match.leak.rate)
    observed = Observed()
    for finding in later:
        if any(leak.lists(finding.test) for leak in before.known):
            observed.add_floors(finding)
    gone = {leak.finding for leak in find_fixed(before, observed)}
    for leak in before.known:
        if leak.finding in again:
            differences.append(again[leak.finding])
        else:
            differences.append(Difference("fixed" if leak.finding in gone else "not measured", leak, leak.rate))
    order: tuple[Change, ...] = ("new", "grown", "same", "fixed", "not measured")
    return tuple(sorted(differences, key=lambda one: (order.index(one.change), one.cause.finding)))


def why_not_comparable(earlier: Sequence[Finding], later: Sequence[Finding]) -> str:
    """Return what differs between the machines or settings of two sessions; empty if nothing does."""
    before, now = (_facts(findings) for findings in (earlier, later))
    return "; ".join(
        f"{name}: {before[name]} and {now[name]}" for name in before if name in now and before[name] != now[name]
    )


def _facts(findings: Sequence[Finding]) -> dict[str, str]:
    if not findings:
        return {}
    environment = findings[0].recording.environment
    resources = sorted({verdict.resource for finding in findings for verdict in finding.verdicts})
    python = ".".join(environment.get("python", "").split(".")[:2])
    return {"Python": python, "libc": environment.get("libc", ""), "resources": ", ".join(resources)}
