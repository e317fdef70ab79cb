from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_leakcheck.baseline import library_leaks
from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeaks
from pytest_leakcheck.baseline.library_leaks import LibraryLeak
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Site
from pytest_leakcheck.model.finding import UnjudgedGrowth, Verdict
from pytest_leakcheck.model.recording import Recording, Series

AUTO = ("leak", "over_budget", "unclosed")
IN_CI = (*AUTO, "inconclusive")
TEST = "tests/test_loader.py::test_switch"


def result(*verdicts: Verdict, budgets: tuple[Budget, ...] = (), series: tuple[Series, ...] = ()) -> Result:
    return Result(Plan(TEST, budgets), Recording(TEST, series, seconds=1.25), verdicts, {})


@pytest.mark.parametrize(
    ("outcome", "explicit", "fail_on", "missing", "colour"),
    [
        ("ok", True, IN_CI, "fail", "green"),
        ("leak", True, AUTO, "skip", "red"),
        ("leak", False, AUTO, "skip", "red"),
        ("leak", True, ("unclosed",), "skip", "yellow"),
        ("over_budget", True, AUTO, "skip", "red"),
        ("unclosed", True, AUTO, "skip", "red"),
        ("unclosed", False, AUTO, "skip", "red"),
        ("inconclusive", True, AUTO, "skip", "yellow"),
        ("inconclusive", True, IN_CI, "skip", "red"),
        ("inconclusive", False, IN_CI, "skip", "yellow"),
        ("unavailable", True, AUTO, "skip", "yellow"),
        ("unavailable", True, AUTO, "fail", "red"),
        ("unavailable", False, AUTO, "fail", "yellow"),
    ],
)
def test_the_colour_of_a_verdict(
    *, outcome: str, explicit: bool, fail_on: tuple[str, ...], missing: str, colour: str
) -> None:
    verdict = Verdict("fd", outcome, explicit=explicit)  # type: ignore[arg-type]
    assert conclude(result(verdict), Policy(fail_on, missing)).colour == colour


def test_what_is_tolerated_is_never_red() -> None:
    assert conclude(result(Verdict("fd", "unclosed", tolerated=True)), Policy(AUTO)).colour == "yellow"


def test_a_warning_names_the_known_leak_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Site("/usr/lib/python3.12/xml/etree/ElementTree.py", 9, "iterparse", "open()")
    leak = LibraryLeak(
        "python", ">=3.11,<99.0.0", "a file stays", "python-x", site="xml/etree/ElementTree.py:iterparse"
    )
    monkeypatch.setattr(library_leaks, "read_shipped", lambda: (leak,))
    warned = replace(
        result(Verdict("fd", "unclosed", explicit=False, tolerated=True)),
        culprit=Culprit("fd", CreationPath((Site("test_it.py", 1, "f"), parse), parse)),
    )
    finding = conclude(warned, Policy(AUTO, library=()))
    assert finding.colour == "yellow"
    assert finding.third_party.startswith("known: a file stays; CPython 99.0.0 fixes it, no 3.")
    assert conclude(warned, Policy(AUTO)).third_party == ""
    # Neither a leak that fails no test under `fail_on` nor an explicit budget is explained.
    for verdict in (Verdict("fd", "leak", explicit=False), Verdict("fd", "unclosed", tolerated=True)):
        assert conclude(replace(warned, verdicts=(verdict,)), Policy((), library=())).third_party == ""
    assert (
        "no suspect"
        in conclude(replace(warned, verdicts=(Verdict("fd", "unclosed"),)), Policy(AUTO, blame=("x",))).third_party
    )


def test_the_reddest_verdict_names_the_finding_and_of_equals_the_worst() -> None:
    ok, leak = Verdict("fd", "ok"), Verdict("heap", "leak", slope=5.0)
    waiting = Verdict("thread", "inconclusive")
    over = Verdict("process", "over_budget", level=1)
    assert conclude(result(ok, waiting, over, leak), Policy(AUTO)).verdicts == (
        replace(leak, colour="red"),
        replace(ok, colour="green"),
        replace(waiting, colour="yellow"),
        replace(over, colour="red"),
    )
    assert conclude(result(ok, waiting, over), Policy(AUTO)).verdict == replace(over, colour="red")
    grown = Verdict("fd", "inconclusive", level=2)
    assert conclude(result(waiting, grown), Policy(AUTO)).verdict == replace(grown, colour="yellow")
    assert conclude(result(ok, waiting), Policy(AUTO)).verdict == replace(waiting, colour="yellow")
    # Where a leak is not to fail, what is red comes first.
    assert conclude(result(leak, over), Policy(("over_budget",))).verdict == replace(over, colour="red")


def test_a_test_that_was_stopped_before_its_start_is_inconclusive() -> None:
    finding = conclude(result(budgets=(Budget("heap", 0),)), Policy(AUTO))
    assert (finding.colour, finding.verdict.resource, finding.verdict.outcome) == ("yellow", "heap", "inconclusive")
    assert finding.verdict.reason == "stopped after 1.2 s, before the first reading"
    assert float(finding.verdict.advice.rpartition("--leakcheck-max-time=")[2]) >= 1


def test_what_grew_and_was_not_judged_is_seen() -> None:
    series = (
        Series("fd", tuple(range(31))),
        Series("heap", tuple(1000 * i for i in range(31))),
        Series("object", (5,) * 31),
        Series("rss", tuple(-4096 * i for i in range(31))),
        # An exact counter: one more per iteration, though two threads that end late leave the growth undecided.
        Series("thread", (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 11, 12, 13, 15, 15, 16, 17)),
        # Malloc while threads of a C library come and go: its last reading is high, and it has not been shown to grow.
        Series(
            "arrow", (0, 1360, -2128, 3424, 12192, 15216, 9312, -2080, 8992, 15056, 22432, 19264, 7568, 17360, 24800)
        ),
    )
    finding = conclude(result(Verdict("fd", "leak", slope=1.0), series=series), Policy(AUTO))
    assert finding.seen == (UnjudgedGrowth("heap", 1000.0, 30_000), UnjudgedGrowth("thread", 1.0, 17))


def test_budgets_and_their_reasons_travel_as_text() -> None:
    budgets = (Budget("fd", 3, reason="one per camera"), Budget("heap"))
    finding = conclude(result(Verdict("fd", "ok"), budgets=budgets), Policy(AUTO))
    assert finding.budgets == {"fd": "3", "heap": "no growth"}
    assert finding.reasons == {"fd": "one per camera"}


def test_a_known_leak_hides_no_explicit_budget_that_is_red() -> None:
    updating = KnownLeaks(Baseline(), "2026-11-25", updating=True)
    leak = Verdict("heap", "leak", slope=5.0, explicit=False)
    unread = Verdict("vram", "unavailable", explicit=True)
    policy = Policy(AUTO, "fail", known=updating)
    assert conclude(result(leak), policy).colour == "yellow"
    assert conclude(result(leak, unread), policy).colour == "red"
    assert conclude(result(leak, unread), replace(policy, missing="skip")).colour == "yellow"
