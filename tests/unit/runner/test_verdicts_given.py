"""The verdicts of a repetition: which stand, what follows a withdrawn one, what an error says, and the last ones."""

from __future__ import annotations

import errno
from collections.abc import Mapping

import pytest

from literal_readings import samples_of
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.runner.verdicts import Verdicts

KIB = 1024
FULL = OSError(errno.EMFILE, "Too many open files")


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
ENDED = "+1.0 KiB/iter, but it did not recur while traced: it depends on time, or has ended"


@pytest.mark.parametrize(
    ("next_one", "recurred", "outcome", "reason"),
    [
        (Verdict("heap", "ok"), False, "ok", "grew at first, and stopped after 50 iterations"),
        (Verdict("heap", "inconclusive"), False, "inconclusive", ENDED),
        (Verdict("heap", "inconclusive"), True, "leak", LEAK.reason),
        (Verdict("heap", "leak", reason="again"), False, "leak", "again"),
        (Verdict("fd", "inconclusive", reason="other"), True, "inconclusive", "other"),
    ],
)
def test_what_follows_a_withdrawn_leak_minds_it(
    next_one: Verdict, recurred: bool, outcome: Outcome, reason: str
) -> None:
    verdicts = given(Verdict("fd", "ok"), LEAK)
    assert verdicts.can_withdraw
    verdicts.withdraw(LEAK, recurred=recurred)
    assert (verdicts.given, verdicts.can_withdraw) == ({}, False)
    standing = verdicts.give(next_one)
    assert verdicts.given == {next_one.resource: standing}
    assert (standing.outcome, standing.reason) == (outcome, reason)


def test_a_verdict_on_the_whole_test_does_not_mind_it() -> None:
    verdicts = given(LEAK)
    verdicts.withdraw(LEAK, recurred=True)
    stopped = Verdict("heap", "inconclusive", reason="no room")
    verdicts.replace_all(stopped)
    assert verdicts.given == {"heap": stopped}


# What an error says.


def failed(
    error: BaseException,
    *budgets: Budget,
    columns: dict[str, list[int]] | None = None,
    ceiling: Mapping[str, int] | None = None,
    before: Verdicts | None = None,
) -> Verdict | None:
    """Return the verdict after an error; None if the error is not explained."""
    verdicts = before if before is not None else Verdicts()
    earlier = dict(verdicts.given)
    samples = samples_of(columns) if columns is not None else None
    explained = verdicts.exhausted(error, plan_of(*budgets), samples, ceiling or {})
    added = {name: verdict for name, verdict in verdicts.given.items() if name not in earlier}
    (verdict,) = added.values() or [None]
    assert explained is (verdict is not None)
    assert verdicts.given == earlier | added
    return verdict


GROWING, STILL = [5, 7, 9, 11], [5, 5, 5, 5]


def test_a_resource_that_grew_until_it_ran_out_is_a_leak() -> None:
    verdict = failed(FULL, Budget("heap"), Budget("fd"), columns={"fd": GROWING, "heap": GROWING})
    assert verdict is not None
    assert (verdict.resource, verdict.outcome, verdict.level, verdict.slope) == ("fd", "leak", 6, 2.0)
    assert verdict.reason == "+2.0/iter over 3 iterations, then OSError: [Errno 24] Too many open files"


def test_the_first_budget_that_explains_the_error_is_judged() -> None:
    columns = {"rss": STILL, "heap": GROWING, "object": GROWING}
    verdict = failed(MemoryError(), Budget("rss"), Budget("object"), Budget("heap"), columns=columns)
    assert verdict is not None
    assert (verdict.resource, verdict.reason) == ("object", "+2.0/iter over 3 iterations, then MemoryError")


@pytest.mark.parametrize(
    ("error", "budget", "columns"),
    [
        (FULL, "thread", {"fd": GROWING, "thread": GROWING}),
        (FULL, "fd", {"fd": STILL}),
        (FULL, "fd", {"fd": [5]}),
        (FULL, "fd", {"thread": GROWING}),
        (FULL, "fd", None),
        (OSError(errno.ENOENT, "no such file"), "fd", {"fd": GROWING}),
        (ValueError("Too many open files"), "fd", {"fd": GROWING}),
    ],
)
def test_another_error_or_one_without_growth_is_not_explained(
    error: Exception, budget: str, columns: dict[str, list[int]] | None
) -> None:
    assert failed(error, Budget(budget), columns=columns) is None


def test_what_has_run_out_under_its_ceiling_is_over_budget() -> None:
    verdict = failed(FULL, Budget("fd"), columns={"fd": STILL}, ceiling={"rss": KIB, "fd": 64})
    assert verdict is not None
    assert (verdict.resource, verdict.outcome, verdict.level, verdict.iterations) == ("fd", "over_budget", 59, 3)
    assert verdict.reason == (
        "failed under the ceiling of 64 descriptors, before growth was detected: "
        "OSError: [Errno 24] Too many open files"
    )


def test_growth_under_a_ceiling_is_a_leak() -> None:
    verdict = failed(FULL, Budget("fd"), columns={"fd": GROWING}, ceiling={"fd": 64})
    assert verdict is not None
    assert verdict.outcome == "leak"


@pytest.mark.parametrize("columns", [None, {"heap": GROWING}])
def test_a_ceiling_may_be_reached_before_its_resource_is_read(columns: dict[str, list[int]] | None) -> None:
    verdict = failed(FULL, columns=columns, ceiling={"fd": 64})
    assert verdict is not None
    assert (verdict.outcome, verdict.level, verdict.iterations) == ("over_budget", 64, 0)


def test_a_ceiling_on_another_resource_explains_nothing() -> None:
    assert failed(FULL, Budget("fd"), columns={"fd": STILL}, ceiling={"rss": KIB}) is None


def test_after_a_red_verdict_an_error_is_not_judged() -> None:
    columns = {"fd": GROWING}
    assert failed(FULL, Budget("fd"), columns=columns, before=given(Verdict("heap", "leak"))) is None
    # Another one does not matter.
    assert failed(FULL, Budget("fd"), columns=columns, before=given(Verdict("heap", "inconclusive"))) is not None


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
