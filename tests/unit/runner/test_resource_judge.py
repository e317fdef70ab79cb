"""When a suspicion is judged, which causes it is compared with before, and what the judge knows of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from literal_readings import LiteralFolder, LiteralTree, SleepingClock, open_literal, samples_of
from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.judge.judge_series import NO_HINT, Context, Hint
from pytest_leakcheck.judge.provenance import Provenance
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.runner import resource_judge as module
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.resource_judge import Decision, ResourceJudge, StartAgain, find_provenance
from pytest_leakcheck.runner.room import Used
from pytest_leakcheck.runner.settling import Settling

MIB = 1 << 20


def rising(by: int, rows: int = 40, *, first: int = 0, once: int = 0) -> list[int]:
    """Return readings that rise by as much in each iteration, and once more in the first."""
    return [first, *(first + once + by * row for row in range(1, rows + 1))]


class Case:
    """The judge of some readings, which took `seconds` of which nothing else took any part."""

    def __init__(
        self,
        clock: SleepingClock,
        columns: Mapping[str, Sequence[int]],
        budgets: Sequence[Budget] = (),
        seconds: float = 0.0,
        **effort: Any,
    ) -> None:
        self.monkeypatch = clock.monkeypatch
        self.looks: list[Any] = []
        innocent = SimpleNamespace(looks=lambda: self.looks)
        plan = Plan("test_a.py::test_b", tuple(budgets), Effort(**{"min_time": 10.0, "max_time": 30.0, **effort}))
        self.run = MeasurementRun(plan, {}, cast("Any", innocent))
        self.samples = samples_of(columns)
        self.tree = LiteralTree(lambda: (0, 2, 0))
        self.instruments = open_literal(self.monkeypatch, tree=self.tree)
        self.settling = Settling(self.samples, self.instruments)
        self.settling.start_clocks()
        clock.take(seconds)
        self.frozen = SimpleNamespace(gone=0)
        self.sampler = SimpleNamespace(
            samples=self.samples,
            instruments=self.instruments,
            settling=self.settling,
            frozen=self.frozen,
            children=0,
        )
        self.judge = ResourceJudge(self.run, cast("Any", self.sampler))

    def decide(self, budget: Budget, *, final: bool = False, unbounded: bool = False) -> Decision:
        return self.judge.decide(budget, final=final, unbounded=unbounded)

    def verdict(self, budget: Budget, *, final: bool = True, unbounded: bool = False) -> Verdict:
        verdict = self.decide(budget, final=final, unbounded=unbounded)
        assert isinstance(verdict, Verdict)
        return verdict

    def context(self, budget: Budget, *, final: bool = False) -> Context:
        """Return what the judge of the series receives."""
        found: list[Context] = []

        def note(_series: object, _budget: Budget, context: Context, _hint: Hint = NO_HINT) -> None:
            found.append(context)

        with self.monkeypatch.context() as patched:
            patched.setattr(module, "judge", note)
            assert self.decide(budget, final=final) is None
        return found[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepingClock:
    return SleepingClock(monkeypatch)


# When growth is judged.


def test_growth_that_may_end_by_itself_is_judged_later(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1), "thread": rising(2)})
    assert case.decide(Budget("fd")) is None
    assert case.judge.early == case.verdict(Budget("fd"))
    assert case.decide(Budget("thread")) is None
    # The first of a look.
    assert case.judge.early.resource == "fd"


def test_no_wait_is_longer_than_the_run(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1)})
    assert case.verdict(Budget("fd"), final=True).outcome == "leak"
    assert case.verdict(Budget("fd"), final=False, unbounded=True).outcome == "leak"
    assert case.decide(Budget("fd")) is None
    case.run.room.short = True
    assert case.verdict(Budget("fd"), final=False).outcome == "leak"


@pytest.mark.parametrize(
    ("effort", "seconds", "waits"),
    [
        ({}, 9.75, True),
        ({}, 10.0, False),
        ({"max_time": 5.0}, 4.75, True),
        ({"max_time": 5.0}, 5.0, False),
        # A number of iterations is run to its end.
        ({"iterations": 100}, 29.0, True),
    ],
)
def test_growth_may_end_as_long_as_that_costs_little_time(
    effort: dict[str, Any], seconds: float, waits: bool, clock: SleepingClock
) -> None:
    assert (Case(clock, {"fd": rising(1)}, seconds=seconds, **effort).decide(Budget("fd")) is None) is waits


def test_a_search_takes_none_of_that_time(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1)}, seconds=12.0)
    case.run.time.set_aside(3.0)
    assert case.decide(Budget("fd")) is None


@pytest.mark.parametrize(
    ("columns", "budget", "limits", "waits"),
    [
        # After 40 rows, the level is that of row 30, and after 200 that of row 150.
        ({"fd": rising(10)}, Budget("fd"), {}, True),
        ({"fd": rising(10, once=1)}, Budget("fd"), {}, False),
        ({"fd": rising(1, 249)}, Budget("fd"), {}, True),
        ({"fd": rising(1, 250)}, Budget("fd"), {}, False),
        ({"fd": rising(1), "rss": [0, *[64 * MIB] * 40]}, Budget("fd"), {}, True),
        ({"fd": rising(1), "rss": [0, *[64 * MIB + 1] * 40]}, Budget("fd"), {}, False),
        # A quarter of what is left: 120, or 119.
        ({"fd": rising(1, first=5)}, Budget("fd"), {"fd": 165}, True),
        ({"fd": rising(1, first=5)}, Budget("fd"), {"fd": 164}, False),
        ({"process": rising(1, once=20)}, Budget("process"), {}, True),
        ({"process": rising(1, once=21)}, Budget("process"), {}, False),
        # The level must hold for longer: until it is passed, a pool may become full.
        ({"fd": rising(1)}, Budget("fd", 30, over=1000), {}, True),
        ({"fd": rising(1)}, Budget("fd", 29, over=1000), {}, False),
        ({"heap": rising(1000, 240)}, Budget("heap", 300_000, over=1000), {}, True),
        # No pool: a level has been passed, or all of it is in use.
        ({"fd": rising(1)}, Budget("fd", 3), {}, False),
        ({"vram": rising(1)}, Budget("vram"), {}, False),
        ({"heap": rising(1000, 200, once=64 * MIB - 150_000)}, Budget("heap"), {}, True),
        ({"heap": rising(1000, 200, once=64 * MIB - 150_000 + 1)}, Budget("heap"), {}, False),
        ({"object": rising(10, 200, once=998_500)}, Budget("object"), {}, True),
        ({"object": rising(10, 200, once=998_501)}, Budget("object"), {}, False),
        # Above 300, and certain only after 250 iterations, are those that may be a pool.
        ({"heap": rising(1000, 260)}, Budget("heap"), {}, True),
        # In a production run, 1,000 bytes per iteration are all that is left.
        ({"heap": rising(1000)}, Budget("heap"), {"heap": 40_000 + 5_000_000}, False),
    ],
)
def test_growth_may_end_as_long_as_there_is_little_of_it(
    columns: dict[str, list[int]], budget: Budget, limits: dict[str, int], waits: bool, clock: SleepingClock
) -> None:
    case = Case(clock, columns, run_length=5000)
    case.run.limits = limits
    if waits:
        assert case.decide(budget) is None
        assert case.judge.early is not None
        assert case.judge.early.is_growth
    else:
        assert case.verdict(budget, final=False).is_growth


def test_a_number_of_iterations_is_not_run_to_its_end_if_that_does_harm(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1, first=5), "heap": rising(1000)}, iterations=100, run_length=5000)
    case.run.limits = {"fd": 164, "heap": 40_000 + 5_000_000}
    assert case.verdict(Budget("fd"), final=False).outcome == "leak"
    assert case.decide(Budget("heap")) is None


def test_memory_of_handles_that_may_end_is_not_judged_before_them(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1), "heap": rising(1000)}, run_length=5000)
    case.run.limits = {"heap": 40_000 + 5_000_000}
    assert case.decide(Budget("fd")) is None
    assert case.decide(Budget("heap")) is None
    # Once the handles are judged, the memory is.
    assert case.verdict(Budget("fd"), unbounded=True).outcome == "leak"
    assert case.verdict(Budget("heap"), final=False).outcome == "leak"


def test_memory_that_may_end_holds_up_no_other_memory(clock: SleepingClock) -> None:
    case = Case(clock, {"object": rising(10, 200), "heap": rising(1000, 200)}, run_length=5000)
    case.run.limits = {"heap": 200_000 + 5_000_000}
    assert case.decide(Budget("object")) is None
    assert case.verdict(Budget("heap"), final=False).outcome == "leak"


def test_a_level_that_is_exceeded_does_not_wait(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": [5, *[8] * 20]}, iterations=100)
    assert case.verdict(Budget("fd", 0), final=False).outcome == "over_budget"


# Slow growth of memory.


@pytest.mark.parametrize(
    ("readings", "seconds", "known", "early"),
    [
        # 522 iterations are left.
        (rising(1000), 0.08, False, "leak"),
        (rising(1000), 0.075, False, None),
        (rising(1000), 0.0, True, "leak"),
        ([7] * 41, 0.08, False, None),
    ],
)
def test_growth_whose_horizon_is_farther_than_a_search_takes_is_noted(
    readings: list[int], seconds: float, known: bool, early: Outcome | None, clock: SleepingClock
) -> None:
    case = Case(clock, {"heap": readings}, seconds=seconds)
    case.run.causes = cast("Any", SimpleNamespace(of=lambda name: [name] if known and name == "heap" else []))
    assert case.decide(Budget("heap")) is None
    assert (case.judge.early.outcome if case.judge.early else None) == early


def test_growth_that_was_noted_first_stays_the_first(clock: SleepingClock) -> None:
    case = Case(clock, {"object": rising(10), "heap": rising(1000), "fd": rising(1)}, seconds=0.08)
    for name in ("heap", "object", "fd"):
        assert case.decide(Budget(name)) is None
    assert case.judge.early is not None
    assert case.judge.early.resource == "heap"


# Innocent causes.


def test_no_cause_is_looked_for_without_a_suspicion(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": [5] * 21, "heap": [*[9] * 20, 8], "arrow": [*[9] * 20, 9]})
    case.looks = [lambda *_given: pytest.fail("looked")]
    assert case.verdict(Budget("fd"), final=False).outcome == "ok"
    # Undecided, but not above their start.
    assert case.verdict(Budget("heap")).outcome == "inconclusive"
    assert case.verdict(Budget("arrow")).outcome == "inconclusive"


def test_a_cause_is_looked_for_if_what_is_undecided_has_risen(clock: SleepingClock) -> None:
    case = Case(clock, {"heap": [*[9] * 7, *[10] * 2]})
    case.looks = [lambda *_given: Hint("a cache fills")]
    verdict = case.verdict(Budget("heap"))
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "a cache fills")


@pytest.mark.parametrize(
    ("seconds", "effort", "most"),
    [
        # An iteration takes a 64th of a second: in 10 of them, 640 more fit.
        (0.5, {"min_time": 10.5}, 672),
        # One takes a second.
        (32.0, {"min_time": 40.0}, 562),
        (1 / 1024, {}, 5000),
        (0.5, {"iterations": 80}, 80),
        (0.5, {"min_time": 0}, 562),
    ],
)
def test_a_look_is_told_how_many_iterations_there_will_be(
    seconds: float, effort: dict[str, Any], most: int, clock: SleepingClock
) -> None:
    case, found = Case(clock, {"fd": rising(1, 32)}, seconds=seconds, **effort), []

    def look(sampler: object, suspicion: Verdict, iterations: int) -> None:
        found.append((sampler, suspicion.resource, suspicion.outcome, iterations))

    case.looks = [look]
    case.decide(Budget("fd"), final=True)
    assert found == [(case.sampler, "fd", "leak", most)]


def test_looks_go_on_until_one_accounts_for_the_growth(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1)})
    case.looks = [
        lambda *_given: None,
        lambda *_given: Hint("a cache fills"),
        lambda *_given: pytest.fail("looked on"),
    ]
    verdict = case.verdict(Budget("fd"))
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "a cache fills")


def test_a_cause_of_a_part_leaves_the_rest_to_others(clock: SleepingClock) -> None:
    case = Case(clock, {"object": rising(1000, 240)})
    case.looks = [lambda *_given: Hint("one cache", 400)]
    verdict = case.verdict(Budget("object"))
    assert (verdict.outcome, verdict.slope) == ("leak", 600)
    # Together they account for all of it.
    case.looks.append(lambda *_given: Hint("another cache", 300))
    verdict = case.verdict(Budget("object"))
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "another cache")


def test_a_prediction_is_a_rest_of_the_growth_as_well(clock: SleepingClock) -> None:
    case = Case(clock, {"heap": rising(1000, 240)})
    case.looks = [lambda *_given: Hint("one cache", 400)]
    verdict = case.verdict(Budget("heap", 1000, over=10_000))
    assert (verdict.outcome, verdict.kind, verdict.slope) == ("over_budget", "predicted", 600)


@pytest.mark.parametrize(("level", "outcome"), [(None, "ok"), (1000, "over_budget")])
def test_a_cache_that_will_be_full_is_ok_unless_a_level_is_exceeded(
    level: int | None, outcome: Outcome, clock: SleepingClock
) -> None:
    case = Case(clock, {"heap": rising(1000, 240)})
    case.looks = [lambda *_given: Hint("a cache fills", 800, at_most=500)]
    assert case.verdict(Budget("heap", level)).outcome == outcome


def test_a_cause_that_has_just_ended_begins_the_series_again(clock: SleepingClock) -> None:
    columns = {"object": rising(10, 240), "heap": rising(1000, 240)}
    budgets = [Budget("object"), Budget("heap"), Budget("arrow")]
    case = Case(clock, columns, budgets)
    case.looks = [lambda *_given: Hint("a cache is full", ended=True)]
    assert isinstance(case.decide(budgets[0], final=True), StartAgain)
    # The levels of all that is judged still count, each time.
    assert (case.context(budgets[0]).carried, case.context(budgets[1]).carried) == (2400, 240_000)
    case.judge.carry_levels()
    assert case.context(budgets[0]).carried == 4800
    assert case.context(budgets[1]).carried == 480_000


def test_where_others_ended_late_descriptors_and_gauges_count_as_they_are(clock: SleepingClock) -> None:
    opened = [2] * 20 + [9] * 21
    columns = {"thread": rising(1), "fd": opened, "gauge:x": opened, "heap": rising(1000)}
    budgets = [Budget(name, 3) for name in columns]
    case = Case(clock, columns, budgets)
    case.tree.count = lambda: (6, 2, 0)
    case.instruments.gauges = {"x": lambda: 7}
    case.looks = [lambda *_given: Hint(ended=True)]
    assert isinstance(case.decide(budgets[0], final=True), StartAgain)
    assert [case.context(one).carried for one in budgets] == [0, 4, 5, 0]


def test_what_replaces_objects_of_the_start_is_no_level(clock: SleepingClock) -> None:
    case = Case(clock, {"object": rising(10), "block": rising(10)}, [Budget("object"), Budget("block")])
    case.frozen.gone = 380
    case.judge.carry_levels()
    assert [case.context(Budget(name)).carried for name in ("object", "block")] == [20, 400]


def test_what_ended_late_is_no_level(clock: SleepingClock) -> None:
    case = Case(clock, {"object": rising(10, 240)}, [Budget("object")])
    case.looks = [lambda *_given: Hint(ended=True)]
    assert isinstance(case.decide(Budget("object"), final=True), StartAgain)
    assert case.context(Budget("object")).carried == 0


@pytest.mark.parametrize(("text", "outcome"), [("a cache is full", "inconclusive"), ("", None)])
def test_without_time_a_cache_that_is_full_is_the_reason(
    text: str, outcome: Outcome | None, clock: SleepingClock
) -> None:
    case = Case(clock, {"object": rising(10, 240)}, [Budget("object")])
    case.run.time.out_of_time = True
    case.looks = [lambda *_given: Hint(text, ended=True)]
    decision = case.decide(Budget("object"), final=True)
    assert (decision.outcome if isinstance(decision, Verdict) else None) == outcome


def test_what_a_look_has_waited_for_is_put_back(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1), "thread": [2] * 41, "process": [0] * 41})
    case.tree.count = lambda: (38, 2, 0)

    def look(*_given: object) -> None:
        assert case.settling.settle(suspected=True)
        assert case.samples.level("fd") == 38

    case.looks = [look]
    assert case.verdict(Budget("fd")).outcome == "leak"
    assert case.samples.level("fd") == 40


# Growth that is counted elsewhere.


@pytest.mark.parametrize(
    ("heap", "mmap", "budget", "outcome"),
    [
        (MIB, 0, default_budget("rss"), "ok"),
        (MIB, 0, Budget("rss"), "leak"),
        (0, 0, default_budget("rss"), "inconclusive"),
        # What is mapped is judged there, unless that grows more slowly.
        (0, MIB, default_budget("rss"), "ok"),
        (0, 3 * MIB // 4, default_budget("rss"), "ok"),
        (0, 5 * MIB // 8, default_budget("rss"), "inconclusive"),
    ],
)
def test_resident_memory_is_judged_for_what_no_other_counter_shows(
    heap: int, mmap: int, budget: Budget, outcome: Outcome, clock: SleepingClock
) -> None:
    case = Case(clock, {"rss": rising(MIB, 60), "heap": rising(heap, 60), "mmap": rising(mmap, 60)}, run_length=5000)
    # A production run would die of it.
    case.run.limits = {"rss": 61 * MIB}
    assert case.verdict(budget).outcome == outcome


def test_growth_that_exact_counters_account_for_has_no_other_cause(clock: SleepingClock) -> None:
    case = Case(clock, {"mmap": rising(MIB, 240), "heap": rising(MIB, 240)})
    case.looks = [lambda *_given: pytest.fail("looked")]
    assert case.verdict(default_budget("mmap")).outcome == "ok"
    case.looks = [lambda *_given: Hint("a cache fills")]
    assert case.verdict(Budget("mmap")).reason == "a cache fills"


def test_what_exact_counters_may_account_for_after_more_iterations_has_no_other_cause(clock: SleepingClock) -> None:
    case = Case(clock, {"mmap": rising(MIB), "heap": rising(MIB)}, run_length=5000)
    # A production run would die of it.
    case.run.limits = {"mmap": 41 * MIB}
    case.looks = [lambda *_given: pytest.fail("looked")]
    assert case.decide(default_budget("mmap")) is None


@pytest.mark.parametrize("resource", ["heap", "mmap"])
def test_no_counter_accounts_for_its_own_growth(resource: str, clock: SleepingClock) -> None:
    case = Case(clock, {"heap": [7] * 241, "rss": rising(MIB, 240), resource: rising(MIB, 240)})
    assert case.verdict(default_budget(resource)).outcome == "leak"


@pytest.mark.parametrize(
    ("gone", "outcome", "slope", "level"),
    # Of 240 that came.
    [(0, "leak", 1, 180), (23, "leak", 1, 180), (24, "leak", 0.9, 156), (240, "ok", 0, -60)],
)
def test_objects_that_replace_others_are_no_growth_if_they_are_a_tenth_of_it(
    gone: int, outcome: Outcome, slope: float, level: int, clock: SleepingClock
) -> None:
    case = Case(clock, {"object": rising(1, 240)})
    case.frozen.gone = gone
    verdict = case.verdict(Budget("object"))
    assert (verdict.outcome, round(verdict.slope, 9), verdict.level) == (outcome, slope, level)


def test_a_cause_of_the_rest_keeps_what_was_replaced(clock: SleepingClock) -> None:
    case = Case(clock, {"object": rising(1, 240)})
    case.frozen.gone = 24
    case.looks = [lambda *_given: Hint("a cache fills")]
    verdict = case.verdict(Budget("object"))
    assert (verdict.reason, verdict.level) == ("a cache fills", 156)


# Entries of shared folders.


class UnknownFolder(LiteralFolder):
    """A folder, all entries of which are of unknown origin."""

    unknown = True

    def leave_out(self, last: int, *, set_aside: bool) -> list[range]:
        self.aside = last if set_aside else 0
        self.left_out = [range(row, last + 1) for row in range(1, last + 1)] if set_aside else []
        return super().leave_out(last, set_aside=set_aside)


@pytest.mark.parametrize(("by", "set_aside"), [(0, [False]), (1, [False, True])])
def test_entries_of_unknown_origin_are_set_aside_only_on_a_suspicion(
    by: int, set_aside: list[bool], clock: SleepingClock
) -> None:
    case, folder = Case(clock, {"shm": rising(by)}), UnknownFolder()
    case.instruments.folders["shm"] = cast("Any", folder)
    verdict = case.verdict(Budget("shm"), final=False)
    assert folder.calls == [("leave_out", 40, one) for one in set_aside]
    assert case.samples.above_start("shm") == 0
    # They leave the verdict in doubt.
    assert verdict.outcome == ("inconclusive" if by else "ok")
    assert verdict.reason.startswith("40 entries of unknown origin in /dev/shm" if by else "")


def test_entries_of_other_programs_raise_no_suspicion(clock: SleepingClock) -> None:
    case, folder = Case(clock, {"shm": rising(1)}), LiteralFolder()
    folder.left_out = [range(row, 41) for row in range(1, 41)]
    case.instruments.folders["shm"] = cast("Any", folder)
    assert case.verdict(Budget("shm"), final=False).outcome == "ok"
    assert folder.calls == [("leave_out", 40, False)]


# What is judged again, and in which order.


@pytest.mark.parametrize(
    ("outcome", "readings", "expected"),
    [
        ("ok", rising(1), True),
        ("ok", [5, *[8] * 40], True),
        ("ok", [5] * 41, False),
        ("ok", rising(1, 2), False),
        # Too late to be judged yet.
        ("ok", [*[5] * 39, 25, 25], True),
        ("inconclusive", rising(1), False),
        ("leak", rising(1), False),
    ],
)
def test_growth_after_an_ok_or_a_level_that_is_passed_raises_doubts(
    outcome: Outcome, readings: list[int], expected: bool, clock: SleepingClock
) -> None:
    assert Case(clock, {"fd": readings}).judge.doubts(Budget("fd", 2), Verdict("fd", outcome)) is expected


STEPS = [0, *[1000] * 20, *[3000] * 20]


@pytest.mark.parametrize(
    ("columns", "order"),
    [
        ({"heap": rising(100), "object": rising(1)}, "heap object"),
        # In steps: in fewer than half of the iterations in which objects come.
        ({"heap": STEPS, "object": rising(1)}, "object heap"),
        ({"heap": [0, 1, 2, *[2] * 38], "object": [*range(5), *[4] * 36]}, "heap object"),
        ({"heap": [0, 1, 2, *[2] * 38], "object": [*range(6), *[5] * 35]}, "object heap"),
        ({"heap": STEPS, "block": rising(1)}, "object heap"),
        # Of blocks, up to 64 bytes each.
        ({"heap": rising(64), "block": rising(1)}, "object heap"),
        ({"heap": rising(65), "block": rising(1)}, "heap object"),
        ({"heap": STEPS}, "heap object"),
        ({"object": rising(1)}, "heap object"),
    ],
)
def test_bytes_are_judged_after_the_objects_that_they_are_of(
    columns: dict[str, list[int]], order: str, clock: SleepingClock
) -> None:
    budgets = [Budget("heap"), Budget("object")]
    assert " ".join(one.resource for one in Case(clock, columns).judge.in_order(budgets)) == order


def test_counts_and_memory_of_a_device_are_judged_in_their_order(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": [0, *[1] * 40], "vram": STEPS, "task": [0] * 41, "object": rising(1), "heap": STEPS})
    names = ["fd", "heap", "vram", "task", "object"]
    assert [one.resource for one in case.judge.in_order(map(Budget, names))] == [*names[:1], *names[2:], "heap"]
    # A count in steps is no count of bytes.
    case = Case(clock, {"object": STEPS, "block": rising(1), "arrow": rising(100)})
    names = ["object", "arrow"]
    assert [one.resource for one in case.judge.in_order(map(Budget, names))] == names


# What the judge of the series receives.


@pytest.mark.parametrize(
    ("limits", "children", "headroom"),
    [({"fd": 64}, 0, 24), ({"fd": 30}, 0, 0), ({"heap": 64}, 0, None), ({"fd": 64}, 1, None)],
)
def test_the_headroom_is_what_is_left_of_the_limit_of_one_process(
    limits: dict[str, int], children: int, headroom: int | None, clock: SleepingClock
) -> None:
    case = Case(clock, {"fd": rising(1)})
    case.run.limits, case.sampler.children = limits, children
    context = case.context(Budget("fd"))
    assert (context.headroom, context.elsewhere) == (headroom, children > 0)


def test_children_have_no_part_of_what_is_counted_in_this_process(clock: SleepingClock) -> None:
    case = Case(clock, {"heap": rising(1)})
    case.run.limits, case.sampler.children = {"heap": 64}, 1
    context = case.context(Budget("heap"))
    assert (context.headroom, context.elsewhere) == (24, False)


def test_the_time_of_an_iteration_is_told_once_time_is_out(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1)}, seconds=8.0)
    assert case.context(Budget("fd")).seconds == 0
    case.run.time.out_of_time = True
    assert case.context(Budget("fd")).seconds == 8.0
    assert case.context(Budget("fd"), final=True).final
    assert case.context(Budget("fd")).effort == case.run.plan.effort


def test_a_series_that_the_room_has_ended_is_told(clock: SleepingClock) -> None:
    case = Case(clock, {"fd": rising(1)})
    assert not case.context(Budget("fd")).stopped
    case.run.room.ended = Used("fd", 1, 2, "count", "descriptors")
    assert case.context(Budget("fd")).stopped


@pytest.mark.parametrize(
    ("columns", "budget", "flat"),
    [
        ({"rss": rising(1), "heap": [7] * 41}, Budget("rss"), True),
        ({"rss": rising(1), "heap": rising(1000)}, Budget("rss"), False),
        ({"rss": rising(1)}, Budget("rss"), False),
        ({"rss": rising(1), "heap": [7] * 41}, default_budget("rss"), False),
        ({"mmap": rising(1), "heap": [7] * 41}, Budget("mmap"), False),
    ],
)
def test_resident_memory_is_compared_with_the_heap_if_all_of_its_growth_is_judged(
    columns: dict[str, list[int]], budget: Budget, flat: bool, clock: SleepingClock
) -> None:
    assert Case(clock, columns).context(budget).exact_flat is flat


@pytest.mark.parametrize(
    ("resource", "grown", "expected"), [("rss", [11], True), ("rss", [], False), ("heap", [11], False)]
)
def test_growth_in_a_child_is_of_resident_memory(
    resource: str, grown: list[int], expected: bool, clock: SleepingClock
) -> None:
    case = Case(clock, {resource: rising(1)})
    clock.monkeypatch.setattr(case.samples, "grown_children", lambda: grown)
    assert case.context(Budget(resource)).in_child is expected


class IdleHeap:
    """A heap that had so many idle bytes at the start, in arenas and in large blocks."""

    resource = "heap"

    def __init__(self, idle: tuple[int, int] | None = (1000, 200)) -> None:
        self._idle = idle
        self.risen: list[int] = []

    def idle(self, risen: int) -> tuple[int, int] | None:
        self.risen.append(risen)
        return self._idle


FLAT, PAGES = [7] * 41, rising(1 << 16)


@pytest.mark.parametrize(
    ("columns", "budget", "idle"),
    [
        ({"rss": PAGES, "mmap": FLAT, "heap": FLAT}, default_budget("rss"), 1230),
        ({"rss": PAGES, "heap": FLAT}, default_budget("rss"), 1230),
        # What is mapped as fast is not what was mapped at the start.
        ({"rss": PAGES, "mmap": PAGES, "heap": FLAT}, default_budget("rss"), 1000),
        ({"rss": PAGES, "mmap": rising(40_000), "heap": FLAT}, default_budget("rss"), 1230),
        ({"rss": PAGES, "heap": rising(6_000)}, default_budget("rss"), 1230),
        ({"rss": PAGES, "heap": rising(7_000)}, default_budget("rss"), inf),
        ({"rss": PAGES, "heap": FLAT}, Budget("rss"), inf),
        ({"rss": [7, *[7 + MIB] * 40], "heap": FLAT}, default_budget("rss"), 1230),
        ({"rss": [7, *[6 + MIB] * 40], "heap": FLAT}, default_budget("rss"), inf),
        ({"mmap": PAGES, "heap": FLAT}, default_budget("mmap"), 1230),
        ({"arrow": PAGES, "heap": FLAT}, default_budget("arrow"), inf),
    ],
)
def test_memory_of_the_start_that_was_idle_may_have_become_resident(
    columns: dict[str, list[int]], budget: Budget, idle: float, clock: SleepingClock
) -> None:
    case, heap = Case(clock, columns), IdleHeap()
    case.instruments.heap = cast("Any", heap)
    clock.monkeypatch.setattr(module, "shared_bytes", lambda: 30)
    assert case.context(budget).idle == idle
    assert heap.risen in ([], [case.samples.above_start(budget.resource)])


def test_the_heap_is_told_how_much_resident_memory_has_risen(clock: SleepingClock) -> None:
    case, heap = Case(clock, {"rss": [900, *[400] * 40], "mmap": PAGES, "heap": FLAT}), IdleHeap()
    case.instruments.heap = cast("Any", heap)
    case.context(default_budget("mmap"))
    case.samples.columns["rss"][40] = 1000
    case.context(default_budget("mmap"))
    assert heap.risen == [0, 100]


def test_resident_memory_that_no_budget_names_may_end_although_a_production_run_would_die_of_it(
    clock: SleepingClock,
) -> None:
    case = Case(clock, {"rss": rising(MIB), "heap": FLAT}, run_length=5000)
    case.run.limits, case.instruments.heap = {"rss": 41 * MIB}, cast("Any", IdleHeap((0, 0)))
    clock.monkeypatch.setattr(module, "shared_bytes", lambda: 0)
    assert case.decide(default_budget("rss")) is None
    assert case.verdict(default_budget("rss"), unbounded=True).outcome == "leak"


@pytest.mark.parametrize("heap", [None, IdleHeap(None)])
def test_what_was_idle_is_unknown_without_glibc(heap: IdleHeap | None, clock: SleepingClock) -> None:
    case = Case(clock, {"rss": PAGES, "heap": FLAT})
    case.instruments.heap = cast("Any", heap)
    assert case.context(default_budget("rss")).idle == inf


@pytest.mark.parametrize(
    ("columns", "budget", "touched"),
    [
        ({"mmap": PAGES, "rss": rising(50_000)}, default_budget("mmap"), True),
        ({"mmap": PAGES, "rss": rising(40_000)}, default_budget("mmap"), False),
        ({"mmap": PAGES, "rss": FLAT}, default_budget("mmap"), False),
        ({"mmap": rising(0, once=MIB), "rss": rising(0, once=MIB)}, default_budget("mmap"), False),
        ({"mmap": PAGES}, default_budget("mmap"), False),
        ({"mmap": PAGES, "rss": PAGES}, Budget("mmap"), False),
        ({"mmap": PAGES, "rss": PAGES}, default_budget("rss"), False),
    ],
)
def test_what_is_mapped_is_used_if_resident_memory_grows_as_fast(
    columns: dict[str, list[int]], budget: Budget, touched: bool, clock: SleepingClock
) -> None:
    assert Case(clock, columns).context(budget).touched is touched


# What the readings do not show.


def lost_device(**of_device: Any) -> Any:
    return SimpleNamespace(resource="vram", **of_device)


def test_a_lost_device_is_judged_at_once(clock: SleepingClock) -> None:
    case = Case(clock, {"vram": [0, 512, 512], "heap": [7] * 3})
    case.instruments.device = lost_device(lost="Xid 79")
    verdict = case.verdict(Budget("vram"), final=False)
    assert (verdict.outcome, verdict.reason) == ("inconclusive", "the device was lost by iteration 2: Xid 79")
    assert case.decide(Budget("heap")) is None
    case.instruments.device = lost_device(lost="")
    assert case.decide(Budget("vram")) is None


def test_each_verdict_has_the_provenance_of_its_count(clock: SleepingClock) -> None:
    case = Case(clock, {"vram": rising(512), "thread": FLAT})
    case.instruments.device = lost_device(lost="", describe_growth=lambda: "device +20.0 KiB")
    assert case.verdict(Budget("vram")).reason.endswith("; device +20.0 KiB")
    clock.monkeypatch.setattr(case.instruments, "find_disturbance", lambda name: Provenance(uncounted=f"not {name}"))
    assert case.verdict(Budget("thread"), final=False).reason == "not thread"


def test_provenance_is_that_of_the_device_the_folder_or_else_the_program(clock: SleepingClock) -> None:
    case, folder = Case(clock, {"rss": FLAT}), LiteralFolder()
    case.instruments.device = lost_device(describe_growth=lambda: "device +20.0 KiB")
    folder.aside, folder.uncounted = 3, "1 new file is elsewhere"
    case.instruments.folders["shm"] = cast("Any", folder)
    clock.monkeypatch.setattr(case.instruments, "find_disturbance", lambda name: Provenance(hidden=name))
    found = {name: find_provenance(cast("Any", case.sampler), name) for name in ("vram", "shm", "fd", "rss")}
    assert found == {
        "vram": Provenance(on_devices="device +20.0 KiB"),
        "shm": Provenance(unknown=3, folder="/dev/shm", uncounted="1 new file is elsewhere"),
        "fd": Provenance(hidden="fd"),
        "rss": Provenance(hidden="rss"),
    }


@pytest.mark.parametrize(
    ("followed", "grown", "uncounted", "grown_in"),
    [
        ([11, 12, 13], [], "", ""),
        ([11, 12], [], "1 child process: its memory is not counted", ""),
        ([], [], "3 child processes: their memory is not counted", ""),
        ([11, 12, 13], [12], "", "in child 12: python b"),
        ([11, 12, 13], [12, 13], "", "in child 12, and in 1 more: python b"),
        ([11, 12, 13], [12, 11, 13], "", "in child 12, and in 2 more: python b"),
        ([11, 12, 13, 14], [14], "", "in child 14: ended"),
    ],
)
def test_resident_memory_is_that_of_children_which_are_followed(
    followed: list[int], grown: list[int], uncounted: str, grown_in: str, clock: SleepingClock
) -> None:
    case, running = Case(clock, {"rss": FLAT}), {11: "python a", 12: "python b", 13: "python c"}
    case.sampler.children = 3
    clock.monkeypatch.setattr(module, "live_children", lambda: running)
    clock.monkeypatch.setattr(case.samples, "children", lambda: dict.fromkeys(followed, 1))
    clock.monkeypatch.setattr(case.samples, "grown_children", lambda: grown)
    found = find_provenance(cast("Any", case.sampler), "rss")
    assert found == Provenance(uncounted=uncounted, grown_in=grown_in)
    assert find_provenance(cast("Any", case.sampler), "heap") == Provenance()
