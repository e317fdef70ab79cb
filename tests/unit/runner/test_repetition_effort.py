"""How long a repetition goes on, what ends it, and what it leaves behind."""

from __future__ import annotations

import errno
import gc
import itertools
import math
import mmap
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import ADAPTIVE, Effort, Plan
from pytest_leakcheck.model.finding import Outcome, Verdict
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.runner.environment import describe_environment
from pytest_leakcheck.runner.measurement_run import TimeLimit
from pytest_leakcheck.runner.repetition import Repetition
from repeats import Clock, descriptors, open_null, repeat, verdict_on

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen"),
]


# A process that runs out, and time that does.


@pytest.mark.parametrize(("grows", "number"), [(False, errno.EMFILE), (True, errno.ENOENT)])
def test_another_failure_or_one_without_growth_is_no_leak(grows: bool, number: int) -> None:
    with descriptors() as kept:
        count = iter(range(100))

        def work() -> None:
            if next(count) == 8:
                raise OSError(number, "no")
            if grows:
                kept.append(open_null())

        result = repeat(work, Budget("fd", 0))
    assert (result.verdicts, result.recording.stopped) == ((), "failed")


def test_after_a_red_verdict_the_failure_of_its_search_is_not_judged() -> None:
    ended, values = False, list[object]()

    def work() -> None:
        values.append([])
        kept.append(open_null())
        if ended:
            raise OSError(errno.EMFILE, "Too many open files")

    with descriptors() as kept:
        repetition = Repetition(Plan("test_a.py::test_b", (Budget("object", 0), Budget("fd")), Effort(min_time=0)))
        repetition.begin()
        work()
        while repetition.iteration_done() and not repetition.searched:
            work()
        ended = True
        with pytest.raises(OSError, match="Too many") as raised:
            work()
        result = repetition.end("failed", raised.value)
    assert [(one.resource, one.outcome) for one in result.verdicts] == [(repetition.searched, "leak")]
    assert result.culprit is None or result.culprit.ran_out is None


def test_time_that_runs_out_ends_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    result = repeat(lambda: clock.take(2), Budget("fd"), max_time=11, warmup=3)
    (verdict,) = result.verdicts
    assert (result.recording.stopped, verdict.outcome, verdict.iterations) == ("time", "inconclusive", 2)
    # A third would end after 12 s. An iteration took what those of the warm-up took, too.
    assert verdict.reason == "2 iterations, 13 needed"
    assert verdict.advice == "an iteration took 2 s: allow time for about 13, --leakcheck-max-time=48"


@pytest.mark.parametrize(
    ("longest", "grows", "outcome", "iterations"),
    [(0, False, "inconclusive", 27), (60, False, "ok", 57), (120, True, "inconclusive", 117)],
)
def test_slow_iterations_get_the_time_that_memory_needs_within_bounds(
    longest: float, grows: bool, outcome: str, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kept = Clock(monkeypatch), list[list[object]]()

    def work() -> None:
        clock.take(1)
        if grows:
            # A cache might take 200 iterations to fill.
            kept.append([])

    verdict = verdict_on(work, Budget("object"), iterations=300, max_time=30, longest=longest)
    assert (verdict.outcome, verdict.iterations) == (outcome, iterations)


def test_a_search_takes_no_time_of_slow_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    limit = TimeLimit(Effort(max_time=30, longest=120))
    for _ in range(20):
        clock.take(0.3)
        limit.iteration_done()
    assert limit.deadline == pytest.approx(90)
    clock.take(40)
    limit.set_aside(40)
    limit.resume()
    assert limit.deadline == pytest.approx(130)
    assert not limit.out_of_time


# Effort.


@pytest.mark.parametrize("warmup", [1, 5])
def test_warm_up_is_not_judged(warmup: int) -> None:
    calls = 0
    with descriptors() as kept:

        def work() -> None:
            nonlocal calls
            calls += 1
            if calls <= warmup:
                kept.append(open_null())

        result = repeat(work, Budget("fd", 0), warmup=warmup)
    assert result.verdicts[0].outcome == "ok"
    assert result.recording.warmup == warmup
    assert calls == warmup + result.recording.series[0].iterations


@pytest.mark.parametrize(("keeps", "outcome"), [(False, "ok"), (True, "leak")])
def test_a_number_of_iterations_is_run_to_its_end(keeps: bool, outcome: str, impatient: None) -> None:  # noqa: ARG001
    with descriptors() as kept:
        result = repeat(lambda: kept.append(open_null()) if keeps else None, Budget("fd", 0), iterations=40)
    assert result.recording.series[0].iterations == 40
    assert (result.verdicts[0].outcome, result.recording.stopped) == (outcome, "iterations")


# Pools of handles, which grow until they are full.


def wait_in_thread() -> Callable[[], None]:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()

    def end() -> None:
        event.set()
        thread.join()

    return end


def start_child() -> Callable[[], None]:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    def end() -> None:
        with child:
            assert child.stdin is not None
            child.stdin.close()

    return end


def connect(folder: Path) -> Callable[[], None]:
    return sqlite3.connect(folder / "pool.db").close


@pytest.fixture
def makers(tmp_path: Path) -> dict[str, Callable[[], Callable[[], object]]]:
    """What creates one handle of each kind, and returns what closes it."""
    return {
        "fd": lambda: partial(os.close, open_null()),
        "connection": lambda: connect(tmp_path),
        "thread": wait_in_thread,
        "process": start_child,
    }


Makers: TypeAlias = Mapping[str, Callable[[], Callable[[], object]]]
RESOURCE: Final = {"connection": "fd"}


def fill(make: Callable[[], Callable[[], object]], bound: float, budget: Budget, **effort: Any) -> Verdict:
    with ExitStack() as kept:
        count = itertools.count()
        return verdict_on(lambda: kept.callback(make()) if next(count) < bound else None, budget, **effort)


@pytest.mark.parametrize("level", [None, 300])
@pytest.mark.parametrize(
    ("kind", "bound"),
    [("fd", 4), ("fd", 20), ("fd", 50), ("fd", 110), ("fd", 250), ("connection", 60), ("thread", 30), ("process", 30)],
)
def test_a_pool_that_becomes_full_is_no_leak(
    kind: str, bound: int, level: int | None, makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    verdict = fill(makers[kind], bound, Budget(RESOURCE.get(kind, kind), level), min_time=3)
    assert verdict.outcome == "ok"
    assert verdict.level >= bound - 3


@pytest.mark.parametrize(("bound", "outcome"), [(30, "ok"), (math.inf, "over_budget")])
def test_a_pool_that_becomes_full_below_a_level_that_must_hold_for_longer(
    bound: float, outcome: Outcome, makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    verdict = fill(makers["fd"], bound, Budget("fd", 50, over=1000), min_time=3)
    assert (verdict.outcome, verdict.kind) == (outcome, "measured" if bound == 30 else "predicted")


@pytest.mark.parametrize(("kind", "most"), [("fd", 300), ("connection", 300), ("thread", 300), ("process", 75)])
def test_a_pool_without_a_bound_is_a_leak(
    kind: str,
    most: int,
    makers: Makers,
    monkeypatch: pytest.MonkeyPatch,
    impatient: None,  # noqa: ARG001
) -> None:
    Clock(monkeypatch)
    verdict = fill(makers[kind], math.inf, Budget(RESOURCE.get(kind, kind)), min_time=3)
    assert (verdict.outcome, verdict.slope) == ("leak", 1.0)
    assert verdict.iterations <= most


def test_handles_are_no_pool_once_they_take_a_quarter_of_what_is_left_of_the_limit(
    makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 200, hard))
    try:
        assert fill(makers["fd"], math.inf, Budget("fd"), min_time=3).iterations < 80
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_handles_are_no_pool(makers: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    with ExitStack() as kept:
        verdict = verdict_on(lambda: [kept.callback(makers["fd"]()) for _ in range(8)], Budget("fd"), min_time=3)
    assert (verdict.outcome, verdict.slope) == ("leak", 8.0)
    assert verdict.iterations < 80


def test_an_expensive_test_does_not_wait_for_a_pool(makers: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with ExitStack() as kept:

        def work() -> None:
            clock.take(0.3)
            kept.callback(makers["fd"]())

        verdict = verdict_on(work, Budget("fd"), min_time=3)
    assert (verdict.outcome, verdict.iterations) == ("leak", 17)


def test_growth_within_an_explicit_level_is_judged_once_the_level_is_passed(
    makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    verdict = fill(makers["fd"], math.inf, Budget("fd", 60))
    assert (verdict.outcome, verdict.slope) == ("leak", 1.0)
    assert 60 < verdict.iterations < 100


def test_growth_within_an_explicit_level_at_the_end_says_what_would_decide(
    makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with ExitStack() as kept:

        def work() -> None:
            clock.take(0.1)
            kept.callback(makers["fd"]())

        verdict = verdict_on(work, Budget("fd", 60), max_time=4)
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "grew +1.0/iter over 36 iterations, within the level of 60"
    assert verdict.advice.startswith("an iteration took 0.1 s: allow time for about 85, --leakcheck-max-time=")


def test_memory_that_handles_of_a_pool_own_waits_with_them(makers: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    """At this rate the memory alone would be called a leak after 17 iterations."""
    Clock(monkeypatch)
    kept: list[bytearray] = []
    with ExitStack() as handles:

        def work() -> None:
            if len(kept) < 40:
                kept.append(bytearray(2 << 20))
                handles.callback(makers["fd"]())

        for judged in ([Budget("fd"), Budget("heap")], [Budget("heap")]):
            kept.clear()
            outcomes = {
                one.resource: one.outcome for one in repeat(work, *judged, min_time=3, run_length=10**6).verdicts
            }
            assert outcomes["heap"] == ("ok" if len(judged) > 1 else "leak")


def test_all_readings_are_recorded_with_witnesses_that_are_not_judged() -> None:
    result = repeat(int, Budget("fd", 0))
    recorded = {series.resource: series.iterations for series in result.recording.series}
    assert recorded == dict.fromkeys(("fd", "thread", "process", "object", "heap"), 13)
    assert result.recording.environment == describe_environment()
    assert result.recording.limits["fd"] > 0


# The harness itself.


def test_the_loop_retains_nothing_of_its_own() -> None:
    budgets = [Budget(name) for name in ("fd", "thread", "process", "task", "heap", "object", "block")]
    result = repeat(int, *budgets, iterations=2000)
    for series in result.recording.series:
        assert series.iterations == 2000
        # Once in a while the interpreter allocates a cache of its own.
        most = find_resource(series.resource).slack
        assert max(series.readings) - min(series.readings) <= most, series.resource


def test_a_repetition_leaves_the_process_as_it_was() -> None:
    repeat(int, Budget("fd"), Budget("rss"))
    before, callbacks = open_targets(), len(gc.callbacks)
    repeat(int, Budget("fd"), Budget("rss"))
    assert (open_targets(), len(gc.callbacks), gc.isenabled()) == (before, callbacks, True)


def test_an_undecided_test_that_retains_much_does_not_go_on_because_it_is_cheap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Allocators reserve address space in ever larger steps, which neither stand still nor grow at one rate."""
    Clock(monkeypatch)
    kept: list[mmap.mmap] = []
    calls = itertools.count()

    def reserve(step: int) -> None:
        if next(calls) > 1.25 ** len(kept) * 2:
            kept.append(mmap.mmap(-1, (len(kept) + 1) * step))

    verdict = verdict_on(lambda: reserve(2 << 20), Budget("mmap"), min_time=3)
    assert (verdict.outcome, verdict.iterations) == ("inconclusive", ADAPTIVE)
    kept.clear()
    calls = itertools.count()
    assert verdict_on(lambda: reserve(64 << 10), Budget("mmap"), min_time=3).iterations > ADAPTIVE
