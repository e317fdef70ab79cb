"""How many iterations the search may use, and what it reports if there were none."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.attribution.handles import HandleKind
from pytest_leakcheck.attribution.tracing import tracing_rounds
from pytest_leakcheck.attribution.tracing.backends import Tracer
from pytest_leakcheck.attribution.tracing.created_handles import Arrival
from pytest_leakcheck.attribution.tracing.tracing_rounds import (
    Creation,
    Schedule,
    charge,
    find_line,
    find_most,
    follow,
    list_new,
    load_memray,
    trace_allocations,
    trace_natively,
)
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.probes import clock

NO_ITERATION = "no iteration was left to trace its calls"
NO_TIME = "no time was left to trace its calls"


def schedule(deadline: float) -> Schedule:
    return Schedule(0.0, deadline, lambda: None, lambda: 0)


def result_of(rounds: Generator[None, None, Creation]) -> Creation:
    made = []

    def steps() -> Iterator[None]:
        made.append((yield from rounds))

    list(steps())
    return made[0]


def test_without_an_iteration_the_report_says_so() -> None:
    things = HandleKind(lambda: 0, dict)
    used_up = schedule(float("inf"))
    for _ in range(5):
        list(used_up.iterations(1.0))
    for why, left in ((NO_TIME, schedule(0.0)), (NO_ITERATION, used_up)):
        assert result_of(follow(things, 1.0, left, unclosed=False)).why == why
        assert result_of(charge(lambda: 0, 1.0, 1.0, left)).why == why
    # With iterations, in which nothing is created, the reason is another one.
    for other in (NO_TIME, NO_ITERATION):
        assert result_of(follow(things, 1.0, schedule(float("inf")), unclosed=False)).why != other
        assert result_of(charge(lambda: 0, 1.0, 1.0, schedule(float("inf")))).why != other


def test_time_in_which_other_processes_ran_costs_allocations_no_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration that waited for a processor is not one that tracing makes slow."""

    def path_of(cpu_time: float) -> tuple[Site, ...]:
        kept: list[bytearray] = []
        now = cpu = 0.0
        monkeypatch.setattr(tracing_rounds, "clock", SimpleNamespace(monotonic=lambda: now, process_time=lambda: cpu))
        rounds = trace_allocations(1000.0, 1.0, Schedule(0.001, float("inf"), lambda: None, lambda: 0), by_size=True)
        while True:
            try:
                next(rounds)
            except StopIteration as ended:
                made: Creation = ended.value
                return made.path
            now += 0.05
            cpu += cpu_time
            keep(kept)

    def keep(kept: list[bytearray]) -> None:
        kept.append(bytearray(1000))

    assert len(path_of(0.001)) > 1
    assert len(path_of(0.05)) <= 1


def test_other_work_of_the_search_takes_no_time_from_its_iterations() -> None:
    late = schedule(clock.monotonic() - 1)
    assert list(late.iterations(1.0)) == []
    late.postpone(60)
    assert list(late.iterations(1.0)) == list(range(7))


@pytest.mark.parametrize(("rate", "rounds"), [(1.0, [7, 7, 7, 7, 6]), (0.1, [31, 31, 31, 7, 0])])
def test_a_rare_growth_gets_enough_iterations_for_three_rounds(rate: float, rounds: list[int]) -> None:
    endless = schedule(float("inf"))
    assert [len(list(endless.iterations(rate))) for _ in rounds] == rounds


HERE = __file__


def count_steps(rounds: Generator[None, None, Creation]) -> int:
    """How many iterations it takes."""
    return sum(1 for _ in rounds)


def test_an_exact_counter_takes_three_iterations_after_the_warm_up_and_a_counter_of_blocks_eight() -> None:
    endless = schedule(float("inf"))
    assert count_steps(list_new("thread", 1.0, endless)) == 1 + 3
    assert count_steps(charge(lambda: 0, 1.0, 1.0, endless)) == 1 + 8


@pytest.mark.parametrize(("size", "iterations"), [(1030, 1 + 8), (1050, 1 + 3)])
def test_the_line_of_blocks_that_malloc_caches_takes_more_iterations(size: int, iterations: int) -> None:
    code = count_steps.__code__
    made = Creation((Site(HERE, code.co_firstlineno, "count_steps"),), code=code, in_line=False)
    rounds = find_line(made, lambda: 0, size, schedule(float("inf")), of_heap=True)
    assert count_steps(rounds) == iterations


def test_memray_traces_four_iterations_after_the_warm_up() -> None:
    pytest.importorskip("memray")
    assert count_steps(trace_natively(UNKNOWN, 100.0, 1.0, schedule(float("inf")))) == 1 + 4


@pytest.mark.parametrize(("plain", "longest"), [(0.001, 0.1), (0.02, 0.2)])
def test_memory_of_objects_is_counted_for_ten_iterations_and_at_least_a_tenth_of_a_second(
    plain: float, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def tracer(*arguments: Any) -> Tracer:
        given.append(arguments[2:])
        return Tracer(*arguments)

    monkeypatch.setattr(tracing_rounds, "Tracer", tracer)
    list(charge(lambda: 0, 5000.0, 1.0, Schedule(plain, float("inf"), lambda: None, lambda: 0), of_c=True))
    assert given == [(), (longest,)]


@pytest.mark.parametrize(("left", "begins"), [(1.2, False), (1.3, True)])
def test_an_iteration_begins_if_a_quarter_more_time_is_left_than_the_last_one_took(
    left: float, *, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing_rounds, "clock", SimpleNamespace(monotonic=lambda: 0.0))
    iterations = Schedule(1.0, left, lambda: None, lambda: 0).iterations(1.0)
    assert (next(iterations, None) == 0) is begins


# A round has five rises that count.
@pytest.mark.parametrize(
    ("rounds", "share", "rises", "goes_on"),
    [(1, 0.9, 0, True), (1, 1.0, 0, False), (2, 1.0, 1, False), (2, 1.0, 2, True)],
)
def test_a_growth_has_ended_if_five_rises_were_expected_and_few_were_seen(
    rounds: int, share: float, rises: int, *, goes_on: bool
) -> None:
    steps = iter([0, 0, *[1] * rises, *[0] * 20])
    levels = accumulate(steps)
    read = Schedule(0.0, float("inf"), lambda: None, lambda: next(levels))
    for _ in range(rounds):
        list(read.iterations(1.0))
    assert read.has_grown(1.0, share) is goes_on


def test_of_several_lines_that_may_have_handed_the_work_in_four_are_listed() -> None:
    tracer: Any = SimpleNamespace(interrupted="")
    why = tracing_rounds._why_unseen(tracer, [f"line {number}" for number in range(9)])
    assert why.endswith("line 0 or line 1 or line 2 or line 3")


UNKNOWN = Creation(why="it is allocated in one call and freed in another")
IN_C = (("pool_alloc", "pool.c", 4), ("<unknown>", "?", 0), ("decode", "av.c", 9), ("PyObject_Call", "call.c", 1))


@dataclass
class Retained:
    size: int
    line: int
    native: tuple[tuple[str, str, int], ...] = IN_C

    def stack_trace(self) -> tuple[tuple[str, str, int], ...]:
        return (("work", HERE, self.line), ("test_it", HERE, 1))

    def native_stack_trace(self) -> tuple[tuple[str, str, int], ...]:
        return self.native


def test_stacks_of_one_line_are_added_up() -> None:
    found = find_most([Retained(300, 7), Retained(400, 8), Retained(300, 7)], 1000)
    assert found is not None
    assert found.path == (Site(HERE, 1, "test_it"), Site(HERE, 7, "work"))
    assert found.native == ("pool_alloc", "decode")
    in_python = find_most([Retained(1000, 7, (("PyMem_Malloc", "obmalloc.c", 1), *IN_C))], 1000)
    assert in_python is not None
    assert in_python.native == ()


def test_what_makes_out_less_than_half_is_not_named() -> None:
    assert find_most([Retained(300, 7), Retained(400, 8)], 1000) is None
    # Line 7 opens files, and closes those of before.
    beside = find_most([Retained(8000, 7), Retained(900, 8)], 1000)
    assert beside
    assert beside.path[-1].line == 8
    assert find_most([], 0) is None


@pytest.mark.parametrize(("size", "is_named"), [(490, False), (510, True), (1900, True), (2100, False)])
def test_a_line_that_retains_half_to_twice_the_growth_is_named(size: int, *, is_named: bool) -> None:
    assert (find_most([Retained(size, 7)], 1000) is not None) is is_named


def test_a_profiler_that_is_active_is_left_alone() -> None:
    sys.setprofile(lambda *_event: None)
    try:
        assert load_memray() == "a profiler is active"
        rounds = trace_natively(UNKNOWN, 100.0, 1.0, schedule(float("inf")))
        with pytest.raises(StopIteration) as ended:
            next(rounds)
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert ended.value.value == Creation(why=f"{UNKNOWN.why}; a profiler is active")


def test_without_memray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memray", None)
    assert load_memray() == "to trace allocations in C: pip install 'pytest-leakcheck[native]'"


def test_another_tracker_that_is_active_is_left_alone(tmp_path: Path) -> None:
    memray = pytest.importorskip("memray")
    with memray.Tracker(tmp_path / "theirs"):
        rounds = trace_natively(UNKNOWN, 100.0, 1.0, schedule(float("inf")))
        next(rounds)
        with pytest.raises(StopIteration) as ended:
            next(rounds)
    assert ended.value.value.why.startswith(f"{UNKNOWN.why}; memray: No more than one")


def test_the_line_of_a_coroutine_that_waits_is_not_named_if_events_were_left_out() -> None:
    waiting = Arrival((Site(HERE, 7, "work"),), "a thing", exact=True, waits=True)
    coarse, fine = (tracing_rounds._created_here(waiting, {}, is_coarse=is_coarse) for is_coarse in (True, False))
    assert (coarse.path, coarse.why) == ((), "too many calls to trace all of them")
    assert fine.path == waiting.path
