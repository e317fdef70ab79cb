"""How long a repetition goes on, what ends it, and what it leaves behind."""

from __future__ import annotations

import errno
import gc
import itertools
import mmap
import sys
import time

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import ADAPTIVE
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.runner.environment import describe_environment
from repeats import descriptors, open_null, repeat, verdict_on

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen"),
]


# A process that runs out, and time that does.


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_running_out_after_growth_is_a_leak(number: int) -> None:
    with descriptors() as kept:

        def work() -> None:
            if len(kept) == 8:
                raise OSError(number, "Too many open files")
            kept.append(open_null())

        result = repeat(work, Budget("thread", 0), Budget("fd", 0))
    (verdict,) = result.verdicts
    assert (verdict.resource, verdict.outcome, verdict.level, verdict.iterations) == ("fd", "leak", 5, 5)
    assert verdict.reason == f"+1.0/iter over 5 iterations, then OSError: [Errno {number}] Too many open files"
    assert result.held["fd"] == (Held("/dev/null", 5),)
    assert result.recording.stopped == "failed"


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


class Clock:
    """Time that only the work takes: what the measuring and other processes take of it is not asked here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 0.0
        monkeypatch.setattr("pytest_leakcheck.probes.clock.monotonic", lambda: self._now)

    def take(self, seconds: float) -> None:
        self._now += seconds


def test_time_that_runs_out_ends_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    result = repeat(lambda: clock.take(0.02), Budget("fd", 0), max_time=0.11, warmup=1)
    (verdict,) = result.verdicts
    assert result.recording.stopped == "time"
    assert verdict.outcome == "inconclusive"
    # A fifth would end after 0.12 s.
    assert verdict.reason == "4 iterations, 13 needed"
    assert verdict.iterations == 4


def test_time_that_runs_out_in_the_warm_up_is_inconclusive_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    result = repeat(lambda: clock.take(0.01), Budget("fd", 0), max_time=0.001)
    assert (result.verdicts, result.recording.stopped) == ((), "time")
    finding = conclude(result, Policy(("leak",)))
    assert (finding.colour, finding.verdict.outcome) == ("yellow", "inconclusive")
    assert finding.verdict.reason == "stopped after 0.0 s, before the first reading"


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


def test_a_number_of_iterations_is_run_to_its_end_unless_a_red_comes_first(impatient: None) -> None:  # noqa: ARG001
    result = repeat(int, Budget("fd", 0), iterations=40)
    assert result.recording.series[0].iterations == 40
    assert (result.verdicts[0].outcome, result.recording.stopped) == ("ok", "iterations")
    with descriptors() as kept:
        result = repeat(lambda: kept.append(open_null()), Budget("fd", 0), iterations=40)
    assert result.recording.series[0].iterations == 17


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


def test_an_undecided_test_that_retains_much_does_not_go_on_because_it_is_cheap() -> None:
    """Allocators reserve address space in ever larger steps, which neither stand still nor grow at one rate."""
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


def test_the_time_that_is_recommended_is_more_than_there_was() -> None:
    # The imports of the first iteration, which may take long on a busy machine, come before the measured ones.
    verdict_on(lambda: None, Budget("fd"))
    verdict = verdict_on(lambda: time.sleep(0.2), Budget("fd"), max_time=2)
    assert verdict.outcome == "inconclusive"
    assert float(verdict.advice.rpartition("=")[2]) > 2
    assert "an iteration took 0." in verdict.advice
