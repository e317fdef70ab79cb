"""A leak whose cause an earlier test has had is confirmed in five iterations; anything else is searched for as ever."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copy
from types import ModuleType
from typing import Any

import pytest

from pytest_leakcheck.attribution.call_paths import read_path, set_project, text_of
from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak, KnownLeaks
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.judge.provenance import Provenance
from pytest_leakcheck.model.culprit import Culprit, Owner, Site, Step, fingerprint
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.runner import phases, resource_judge
from pytest_leakcheck.runner.known_causes import KnownCause, KnownCauses
from pytest_leakcheck.runner.repetition import Repetition

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen", "impatient"),
]
SHOP = Path(__file__).with_name("sessions") / "program_of_a_shop.py"
Work = Callable[[], object]
# The iterations in which a cause is confirmed: one that shows which owner grows, then a warm-up, then three.
CONFIRMED = 5


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of a project that leaks."""
    copy(SHOP, tmp_path / "leaky_shop.py")
    monkeypatch.syspath_prepend(tmp_path)
    set_project(tmp_path, ())
    import leaky_shop  # type: ignore[import-not-found]

    module: ModuleType = leaky_shop
    yield module
    for opened in (leaky_shop.descriptors, leaky_shop.others, leaky_shop.seconds):
        while opened:
            os.close(opened.pop())
    del sys.modules["leaky_shop"]
    set_project(Path.cwd(), ())


@pytest.mark.parametrize(
    ("resource", "each", "grown", "explained"),
    [("heap", 1000, 10_700, True), ("heap", 1000, 11_500, False), ("object", 1, 10, True), ("object", 1, 11, False)],
)
def test_a_cause_explains_growth_within_a_tenth_of_the_bytes_and_a_count_exactly(
    resource: str, each: float, grown: float, *, explained: bool
) -> None:
    owner, site = Owner("KEPT", "KEPT", (), "bytes", 1.0), Site("/x/shop.py", 1, "keep")
    cause = KnownCause("t", resource, owner, site, judge.__code__, each)
    assert cause.explains(grown, 10, 10, Verdict(resource, "leak", each)) is explained


def judge(causes: KnownCauses, test: str, resource: str, *work: Work, **effort: Any) -> Result:
    return repeat(Plan(test, (Budget(resource),), Effort(**effort)), causes, *work)


def judge_unmarked(causes: KnownCauses, test: str, *work: Work, min_time: float) -> Result:
    """Judge as a test without a mark, which is screened first."""
    plan = Plan(
        test, (Budget("thread"), Budget("fd"), Budget("object")), Effort(warmup=1, min_time=min_time), screen=True
    )
    return repeat(plan, causes, *work)


def repeat(plan: Plan, causes: KnownCauses, *work: Work) -> Result:
    repetition = Repetition(plan, causes=causes)
    repetition.begin()
    wanted = True
    while wanted:
        for one in work:
            one()
        wanted = repetition.iteration_done()
    return repetition.end()


def by_outcome(result: Result) -> dict[str, Verdict]:
    return {one.outcome: one for one in result.verdicts}


def outcome_of(result: Result) -> tuple[str, float, str]:
    (verdict,), culprit = result.verdicts, result.culprit
    assert culprit is not None
    assert culprit.owner is not None
    return verdict.outcome, round(verdict.slope, 1), culprit.owner.name


@pytest.mark.parametrize(
    ("resource", "call", "owner", "rate"),
    [
        ("fd", "opens", "leaky_shop.descriptors", 1.0),
        ("object", "keeps_number", "leaky_shop.by_number", 1.0),
        ("object", "keeps_whole", "Registry.wholes", 4.0),
    ],
)
def test_a_second_test_with_one_cause_is_confirmed(
    shop: Any, resource: str, call: str, owner: str, rate: float
) -> None:
    causes, work = KnownCauses(), getattr(shop, call)
    first = judge(causes, "test_a.py::test_a", resource, work, min_time=0.2)
    second = judge(causes, "test_b.py::test_b", resource, work, min_time=30)
    assert outcome_of(first) == outcome_of(second) == ("leak", rate, owner)
    assert first.culprit
    assert second.culprit
    assert second.culprit.iterations == CONFIRMED < first.culprit.iterations
    # Without the time that might show a pool or a cache: there would be 60 s of it.
    assert second.verdicts[0].iterations == 17
    assert second.verdicts[0].reason.endswith("; its cause is that of test_a.py::test_a, and was only confirmed here")
    assert "test_a" not in first.verdicts[0].reason
    assert [fingerprint("", resource, one.culprit) for one in (first, second)] == [
        fingerprint("", resource, first.culprit)
    ] * 2
    site = second.culprit.site
    assert site
    assert site.function == call
    assert second.culprit.owner
    assert second.culprit.owner.gained == 1.0
    assert second.culprit.owner.steps[-1].via == "entries"


@pytest.mark.parametrize(
    ("known", "line", "call", "confirmed"),
    [
        ("adds_path", 1, "adds_path", True),
        ("adds_path", 1, "adds_other_path", False),
        # The lines before and after it hold as many blocks until the function returns.
        ("adds_path_among_others", 2, "adds_path_among_others", True),
        ("adds_path_among_others", 0, "adds_path_among_others", False),
    ],
)
def test_what_everybody_holds_is_confirmed_by_the_line_that_adds_it(
    shop: Any, monkeypatch: pytest.MonkeyPatch, known: str, line: int, call: str, *, confirmed: bool
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    site = Site(shop.__file__, getattr(shop, known).__code__.co_firstlineno + line, known)
    steps = (Step("module sys", "path", suspect=False), Step("list of 7", "[6]", suspect=True))
    owner = Owner("sys.path", "module sys", steps, "", 1.0, "module", "sys")
    causes = KnownCauses()
    causes.add(
        "test_a.py::test_a", "leak", Culprit("block", read_path((site,)), owner=owner, source=text_of(site)), 1.0
    )
    result = judge(causes, "test_b.py::test_b", "block", getattr(shop, call), min_time=0.2)
    assert result.verdicts[0].outcome == "leak"
    assert result.verdicts[0].reason.endswith("only confirmed here") == confirmed


def test_a_line_of_an_installed_package_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    copy(SHOP, folder / "installed_shop.py")
    monkeypatch.syspath_prepend(folder)
    import installed_shop  # type: ignore[import-not-found]

    causes = KnownCauses()
    first = judge(causes, "test_a.py::test_a", "object", installed_shop.keeps_whole, min_time=0.2).culprit
    second = judge(causes, "test_b.py::test_b", "object", installed_shop.keeps_whole, min_time=0.2).culprit
    assert first
    assert second
    assert second.iterations == CONFIRMED < first.iterations


def test_a_confirmed_cause_says_nothing_that_was_seen_in_another_test_only(shop: Any) -> None:
    causes = KnownCauses()
    first = judge(causes, "test_a.py::test_a", "object", lambda: shop.keep(shop.new_list), min_time=0.2).culprit
    second = judge(causes, "test_b.py::test_b", "object", lambda: shop.keep(shop.new_set), min_time=0.2).culprit
    assert first
    assert second
    assert second.iterations == CONFIRMED
    assert first.where
    assert first.where.path[-2].call == "new_list()"
    assert second.site == replace(first.where.path[-2], call="")
    assert first.owner
    assert second.owner
    assert " × list, " in first.owner.holds
    assert " × set, " in second.owner.holds


@pytest.mark.parametrize(
    ("resource", "call", "beside"),
    [
        # Another line that opens what the same list keeps, another list, and both at once.
        ("fd", ("opens",), ("opens_elsewhere",)),
        ("fd", ("opens",), ("opens_another",)),
        ("fd", ("opens",), ("opens", "opens_another")),
        ("fd", ("opens",), ("opens", "keeps_second")),
        ("object", ("keeps_whole",), ("keeps_part",)),
        ("object", ("keeps_whole",), ("keeps_whole", "keeps_number")),
    ],
)
def test_what_it_does_not_account_for_is_searched_for(
    shop: Any, resource: str, call: tuple[str, ...], beside: tuple[str, ...]
) -> None:
    causes = KnownCauses()
    judge(causes, "test_a.py::test_a", resource, *(getattr(shop, one) for one in call), min_time=0.1)
    result = judge(causes, "test_b.py::test_b", resource, *(getattr(shop, one) for one in beside), min_time=0.1)
    (verdict,), culprit = result.verdicts, result.culprit
    assert verdict.outcome == "leak"
    assert "test_a" not in verdict.reason
    assert culprit
    assert culprit.iterations > CONFIRMED
    alone = judge(KnownCauses(), "test_b.py::test_b", resource, *(getattr(shop, one) for one in beside), min_time=0.1)
    assert alone.culprit
    assert culprit.site == alone.culprit.site


def test_an_unmarked_test_with_a_known_leak_is_red_after_its_screen(shop: Any, begun: list[str]) -> None:
    causes = KnownCauses()
    first = judge_unmarked(causes, "test_a.py::test_a", shop.opens, min_time=0.1)
    second = judge_unmarked(causes, "test_b.py::test_b", shop.opens, min_time=30)
    assert first.culprit
    assert second.culprit
    leak = by_outcome(second)["leak"]
    assert leak.reason.startswith("+1.0/iter in each of 4 iterations; its cause is that of test_a.py::test_a")
    assert (leak.slope, second.culprit.iterations) == (by_outcome(first)["leak"].slope, CONFIRMED)
    assert second.culprit.owner
    assert second.culprit.owner.name == "leaky_shop.descriptors"
    # What has not risen was judged by the screen.
    assert by_outcome(second)["ok"].iterations == 4
    assert begun[-3:] == ["Screen", "EarlySearch", "Judged"]


def test_a_count_that_is_not_that_of_the_test_confirms_no_known_cause(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = KnownCauses()
    judge_unmarked(causes, "test_a.py::test_a", shop.opens, min_time=0.1)
    foreign = Provenance(foreign="the test has closed a descriptor of the plugin", foreign_level={"leak": 1000})
    for module in (phases, resource_judge):
        monkeypatch.setattr(module, "find_provenance", lambda *_: foreign)
    result = judge_unmarked(causes, "test_b.py::test_b", shop.opens, min_time=0.1)
    (doubt,) = (one for one in result.verdicts if one.resource == "fd")
    assert (doubt.outcome, doubt.reason) == ("inconclusive", foreign.foreign)


def test_an_unmarked_test_that_leaves_a_known_line_unclosed_is_red_after_its_screen(shop: Any) -> None:
    causes = KnownCauses()
    results = [judge_unmarked(causes, f"test_{n}.py::test", shop.opens_in_cycle, min_time=0.1) for n in range(2)]
    first, second = (one.culprit for one in results)
    assert first
    assert second
    verdicts = [by_outcome(one)["unclosed"] for one in results]
    assert [one.slope for one in verdicts] == [1.0, 1.0]
    assert [one.iterations for one in verdicts] == [17, 4]
    assert verdicts[1].reason.endswith("; its cause is that of test_0.py::test, and was only confirmed here")
    assert second.iterations == 3 < first.iterations
    assert (second.site, second.cycle) == (first.site, first.cycle)
    assert second.cycle
    assert results[1].held["fd"] == results[0].held["fd"]


@pytest.mark.parametrize("beside", [("opens_other_in_cycle",), ("keeps_number", "opens")])
def test_an_unmarked_test_without_the_known_cause_is_judged_in_full(shop: Any, beside: tuple[str, ...]) -> None:
    """Once another line leaves as many unclosed, once another resource leaks."""
    causes, works = KnownCauses(), [getattr(shop, one) for one in beside]
    judge_unmarked(causes, "test_a.py::test_a", shop.opens_in_cycle, min_time=0.1)
    result = judge_unmarked(causes, "test_b.py::test_b", *works, min_time=0.1)
    alone = judge_unmarked(KnownCauses(), "test_b.py::test_b", *works, min_time=0.1)
    (verdict,) = (one for one in result.verdicts if one.outcome != "ok")
    assert verdict.iterations >= 17
    assert "test_a" not in verdict.reason
    # What has not risen is judged in full too: 13 iterations for the threads.
    assert [one.verdicts[0].iterations for one in (result, alone)] == [13, 13]
    assert result.culprit
    assert alone.culprit
    assert (result.culprit.site, result.culprit.cycle) == (alone.culprit.site, alone.culprit.cycle)


def test_threads_of_a_known_line_that_nothing_holds_are_no_pool(shop: Any) -> None:
    """Else they may be one, until there are 300 or the time is over."""
    causes, (waits, over) = KnownCauses(), os.pipe()

    def work() -> None:
        shop.starts_waiting(waits)

    try:
        first, second = (judge(causes, f"test_{n}.py::test", "thread", work, min_time=2.0) for n in range(2))
    finally:
        os.close(over)
    assert [one.verdicts[0].outcome for one in (first, second)] == ["leak", "leak"]
    assert second.verdicts[0].iterations == 17 < first.verdicts[0].iterations
    assert first.culprit
    assert second.culprit
    assert second.culprit.where == first.culprit.where
    assert "test_0" not in second.verdicts[0].reason


def test_an_owner_that_is_another_object_now_is_searched_for(shop: Any) -> None:
    causes = KnownCauses()
    judge(causes, "test_a.py::test_a", "object", shop.keeps_number, min_time=0.1)
    kept, shop.by_number = shop.by_number, {}
    result = judge(causes, "test_b.py::test_b", "object", lambda: kept.update({next(shop.turns): []}), min_time=0.1)
    assert result.culprit
    assert result.culprit.iterations > CONFIRMED


def listed(owner: str, rate: float) -> KnownCauses:
    leak = KnownLeak("0a1b2c-object-x", "object", "leak", rate, owner, "", ("test_c.py::test_c",), "2026-01-01")
    return KnownCauses(KnownLeaks(Baseline((leak,)), "2026-01-02"))


def test_the_baseline_tells_that_an_owner_leaks(shop: Any) -> None:
    """What the owner is takes a search, but no time that might show a cache; a higher rate takes it."""
    work, name = shop.keeps_number, "leaky_shop.by_number"
    result = judge(listed(name, 1.0), "test_a.py::test_a", "object", work, min_time=30)
    assert outcome_of(result) == ("leak", 1.0, name)
    assert result.recording.seconds < 30
    for causes, works in ((listed("leaky_shop.others", 1.0), [work]), (listed(name, 0.4), [work, work])):
        result = judge(causes, "test_a.py::test_a", "object", *works, min_time=0.5)
        assert result.recording.seconds >= 0.5
