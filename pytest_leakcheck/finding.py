"""A `Result` in, a `Finding` out: the verdict on one test, the value that every report renders."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from pytest_leakcheck.attribution.identity import Held
from pytest_leakcheck.ratchet import growth
from pytest_leakcheck.resources import find_resource
from pytest_leakcheck.runner import Result
from pytest_leakcheck.series import Recording
from pytest_leakcheck.verdict import Verdict

Colour: TypeAlias = Literal["green", "yellow", "red"]

# The worst first: it is the one that names the finding.
_RANK: Final = ("leak", "over_budget", "unclosed", "inconclusive", "unavailable", "ok")


@dataclass(frozen=True, slots=True)
class Seen:
    """A counter that moved and was not judged."""

    resource: str
    slope: float
    level: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of one test.

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

    @property
    def fingerprint(self) -> str:
        """Equal for the same verdict on the same test on any machine: six hex digits and the resource."""
        known = f"{self.test}|{self.verdict.resource}|{self.verdict.outcome}"
        return f"{hashlib.sha256(known.encode(errors='backslashreplace')).hexdigest()[:6]}-{self.verdict.resource}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json` gives the finding back equal."""
        data = asdict(self)
        data["recording"] = self.recording.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        return cls(
            test=data["test"],
            colour=data["colour"],
            verdict=Verdict.from_json(data["verdict"]),
            verdicts=tuple(map(Verdict.from_json, data["verdicts"])),
            colours=tuple(data["colours"]),
            budgets=dict(data["budgets"]),
            seen=tuple(Seen(**one) for one in data["seen"]),
            held={name: tuple(Held(**one) for one in group) for name, group in data["held"].items()},
            recording=Recording.from_json(data["recording"]),
            reasons=dict(data["reasons"]),
        )


def conclude(result: Result, fail_on: tuple[str, ...], missing: str = "skip") -> Finding:
    """Judge a whole test by the verdicts on its resources.

    Args:
        result: What the repetition found.
        fail_on: Outcomes that are red; ``unclosed`` and ``inconclusive`` only under an explicit budget.
        missing: ``"fail"`` makes an absent instrument of an explicit budget red.

    Returns:
        The finding. A test that was stopped before its start is ``inconclusive``.
    """
    verdicts = result.verdicts
    if not verdicts:
        names = [budget.resource for budget in result.plan.budgets] or ["fd"]
        missed = "a verdict" if result.recording.series else "the first reading"
        reason = f"stopped after {result.recording.seconds:.1f} s, before {missed}"
        verdicts = (Verdict(names[0], "inconclusive", reason=reason, advice="give it more time: --leakcheck-max-time"),)
    colours = {verdict: _colour(verdict, fail_on, missing) for verdict in verdicts}
    order = ("red", "yellow", "green")
    worst = min(verdicts, key=lambda verdict: (order.index(colours[verdict]), _RANK.index(verdict.outcome)))
    judged = {verdict.resource for verdict in verdicts}
    return Finding(
        test=result.plan.test,
        colour=colours[worst],
        verdict=worst,
        verdicts=verdicts,
        colours=tuple(colours[verdict] for verdict in verdicts),
        budgets={budget.resource: str(budget) for budget in result.plan.budgets},
        seen=_seen(result.recording, judged),
        held=result.held,
        recording=result.recording,
        reasons={budget.resource: budget.reason for budget in result.plan.budgets if budget.reason},
    )


def _colour(verdict: Verdict, fail_on: tuple[str, ...], missing: str) -> Colour:
    if verdict.outcome == "ok":
        return "green"
    if verdict.outcome == "unavailable":
        return "red" if missing == "fail" and verdict.explicit else "yellow"
    if verdict.outcome in ("unclosed", "inconclusive") and not verdict.explicit:
        return "yellow"
    return "red" if verdict.outcome in fail_on else "yellow"


def _seen(recording: Recording, judged: set[str]) -> tuple[Seen, ...]:
    found = []
    for series in recording.series:
        if series.resource in judged or series.iterations < 2:
            continue
        resource = find_resource(series.resource)
        grown = growth(series.readings, resource.tolerance, exact=resource.scarce)
        level = series.readings[-1] - series.readings[0]
        if grown.state != "flat" and level > resource.slack and grown.slope > 0:
            found.append(Seen(series.resource, grown.slope, level))
    return tuple(found)
