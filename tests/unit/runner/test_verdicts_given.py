"""The verdicts of a repetition: which stand, what follows a withdrawn one, and which are reported."""

from __future__ import annotations

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.runner.verdicts import Verdicts


def plan_of(*budgets: Budget) -> Plan:
    return Plan("test_a.py::test_b", budgets, Effort())


def given(*verdicts: Verdict) -> Verdicts:
    found = Verdicts()
    for verdict in verdicts:
        found.give(verdict)
    return found


# Given and taken back.


@pytest.mark.parametrize(
    ("outcomes", "red"),
    [
        ([], None),
        (["ok", "inconclusive", "unavailable"], None),
        (["ok", "unclosed", "leak"], 1),
        (["over_budget", "leak"], 0),
        (["inconclusive", "leak"], 1),
    ],
)
def test_the_first_red_verdict_is_that_of_the_run(outcomes: list[Outcome], red: int | None) -> None:
    names = ("fd", "thread", "heap")
    verdicts = given(*(Verdict(name, outcome) for name, outcome in zip(names, outcomes, strict=False)))
    assert verdicts.red == (None if red is None else Verdict(names[red], outcomes[red]))


def test_a_verdict_replaces_that_on_its_resource() -> None:
    verdicts = given(Verdict("fd", "ok"), Verdict("heap", "ok"), Verdict("fd", "leak"))
    assert [(one.resource, one.outcome) for one in verdicts.given.values()] == [("fd", "leak"), ("heap", "ok")]
    verdicts.take_back("fd")
    verdicts.take_back("thread")
    assert list(verdicts.given) == ["heap"]
    verdicts.replace_all(Verdict("rss", "inconclusive"))
    assert list(verdicts.given) == ["rss"]
    verdicts.take_all_back()
    assert not verdicts.given


# Withdrawn.


LEAK = Verdict("heap", "leak", reason="+1.0 KiB/iter", iterations=50)


@pytest.mark.parametrize(
    ("next_one", "outcome", "reason"),
    [
        (Verdict("heap", "ok"), "ok", "grew at first, and stopped after 50 iterations"),
        (Verdict("heap", "inconclusive", reason="undecided"), "leak", LEAK.reason),
        (Verdict("heap", "leak", reason="again"), "leak", "again"),
        (Verdict("fd", "inconclusive", reason="other"), "inconclusive", "other"),
    ],
)
def test_what_follows_a_withdrawn_leak_minds_it(next_one: Verdict, outcome: Outcome, reason: str) -> None:
    verdicts = given(LEAK)
    assert verdicts.can_withdraw
    verdicts.withdraw(LEAK)
    assert not verdicts.can_withdraw
    verdicts.take_all_back()
    standing = verdicts.give(next_one)
    assert verdicts.given == {next_one.resource: standing}
    assert (standing.outcome, standing.reason) == (outcome, reason)


def test_a_verdict_on_the_whole_test_does_not_mind_it() -> None:
    verdicts = given(LEAK)
    verdicts.withdraw(LEAK)
    stopped = Verdict("heap", "inconclusive", reason="no room")
    verdicts.replace_all(stopped)
    assert verdicts.given == {"heap": stopped}
    verdicts.replace_all(stopped, Verdict("fd", "inconclusive"))
    assert list(verdicts.given) == ["heap", "fd"]


# Completed.


def test_the_last_ones_say_what_could_not_be_read_or_has_no_ceiling() -> None:
    plan = plan_of(Budget("fd"), Budget("vram", explicit=True), Budget("thread", explicit=False))
    verdicts = given(Verdict("fd", "ok"), Verdict("rss", "leak"), Verdict("heap", "ok"))
    missing = {"vram": OSError("no device"), "thread": OSError("no threads")}
    last = verdicts.complete(plan, missing, {"heap": "no limits here", "rss": "none"})
    assert [(one.resource, one.outcome, one.reason) for one in last] == [
        ("fd", "ok", ""),
        ("rss", "leak", ""),
        ("vram", "unavailable", "no device"),
        ("heap", "unavailable", "no limits here"),
        ("rss", "unavailable", "none"),
    ]
