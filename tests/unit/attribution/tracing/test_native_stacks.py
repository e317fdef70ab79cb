from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.tracing.tracing_rounds import Made, Schedule, find_most, load_memray, trace_natively
from pytest_leakcheck.model.culprit import Site

HERE = __file__
UNKNOWN = Made(why="it is allocated in one call and freed in another")
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


def schedule() -> Schedule:
    return Schedule(0.001, float("inf"), lambda: None)


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
    assert find_most([], 0) is None


def test_a_profiler_that_is_active_is_left_alone() -> None:
    sys.setprofile(lambda *_event: None)
    try:
        assert load_memray() == "a profiler is active"
        rounds = trace_natively(UNKNOWN, 100.0, 1.0, schedule())
        with pytest.raises(StopIteration) as ended:
            next(rounds)
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)
    assert ended.value.value == Made(why=f"{UNKNOWN.why}; a profiler is active")


def test_without_memray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memray", None)
    assert load_memray() == "to trace allocations in C: pip install 'pytest-leakcheck[native]'"


def test_another_tracker_that_is_active_is_left_alone(tmp_path: Path) -> None:
    memray = pytest.importorskip("memray")
    with memray.Tracker(tmp_path / "theirs"):
        rounds = trace_natively(UNKNOWN, 100.0, 1.0, schedule())
        next(rounds)
        with pytest.raises(StopIteration) as ended:
            next(rounds)
    assert ended.value.value.why.startswith(f"{UNKNOWN.why}; memray: No more than one")
