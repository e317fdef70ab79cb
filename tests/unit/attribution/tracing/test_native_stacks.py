from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.tracing.native_stacks import (
    Retained,
    functions_of,
    most_of_it,
    path_of,
    trace_natively,
    why_not,
)
from pytest_leakcheck.attribution.tracing.tracing_rounds import Made, Schedule
from pytest_leakcheck.model.culprit import Site

HERE = __file__
UNKNOWN = Made(why="it is allocated in one call and freed in another")
IN_C = (("pool_alloc", "pool.c", 4), ("<unknown>", "?", 0), ("decode", "av.c", 9), ("PyObject_Call", "call.c", 1))


def retained(size: int, line: int) -> Retained:
    return Retained(size, (("work", HERE, line), ("test_it", HERE, 1)), IN_C)


def schedule() -> Schedule:
    return Schedule(0.001, float("inf"), lambda: None)


def test_a_stack_is_turned_round_and_ends_in_c_where_the_interpreter_begins() -> None:
    assert path_of(retained(1, 7).python) == (Site(HERE, 1, "test_it"), Site(HERE, 7, "work"))
    assert functions_of(IN_C) == ("pool_alloc", "decode")
    assert functions_of((("PyMem_Malloc", "obmalloc.c", 1), *IN_C)) == ()


def test_stacks_of_one_line_are_added_up() -> None:
    found = most_of_it([retained(300, 7), retained(400, 8), retained(300, 7)], 1000)
    assert found is not None
    assert found.line == (HERE, 7)
    assert found.native == ("pool_alloc", "decode")


def test_what_makes_out_less_than_half_is_not_named() -> None:
    assert most_of_it([retained(300, 7), retained(400, 8)], 1000) is None
    assert most_of_it([], 0) is None


def test_a_profiler_that_is_active_is_left_alone() -> None:
    sys.setprofile(lambda *_event: None)
    try:
        assert why_not() == "a profiler is active"
        rounds = trace_natively(UNKNOWN, 100.0, 1.0, schedule())
        with pytest.raises(StopIteration) as ended:
            next(rounds)
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert ended.value.value == Made(why=f"{UNKNOWN.why}; a profiler is active")


def test_without_memray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_leakcheck.attribution.tracing.native_stacks.find_spec", lambda _name: None)
    assert why_not() == "to trace allocations in C: pip install 'pytest-leakcheck[native]'"


def test_another_tracker_that_is_active_is_left_alone(tmp_path: Path) -> None:
    memray = pytest.importorskip("memray")
    with memray.Tracker(tmp_path / "theirs"):
        rounds = trace_natively(UNKNOWN, 100.0, 1.0, schedule())
        next(rounds)
        with pytest.raises(StopIteration) as ended:
            next(rounds)
    assert ended.value.value.why.startswith(f"{UNKNOWN.why}; memray: No more than one")


def test_without_an_iteration_it_knows_what_it_knew() -> None:
    pytest.importorskip("memray")
    rounds = trace_natively(UNKNOWN, 100.0, 1.0, Schedule(0.001, 0.0, lambda: None))
    with pytest.raises(StopIteration) as ended:
        next(rounds)
    assert ended.value.value == UNKNOWN
