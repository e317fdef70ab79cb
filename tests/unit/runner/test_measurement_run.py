"""The time of a repetition, and the limits of its ceiling."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_leakcheck.config.budget import Budget, Ceiling
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.memory import PAGE
from pytest_leakcheck.runner import measurement_run as module
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from pytest_leakcheck.runner.known_causes import KnownCauses
from pytest_leakcheck.runner.measurement_run import ImposedCeiling, MeasurementRun, TimeLimit
from pytest_leakcheck.runner.progress import Progress, follow
from repeats import Clock

KIB = 1024


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(monkeypatch)
    clock.now = 1000.0
    return clock


# Time.


def iterate(limit: TimeLimit, clock: Clock, *seconds: float) -> None:
    for each in seconds:
        clock.take(each)
        limit.iteration_done()


@pytest.mark.parametrize(("last", "out"), [(2.0, False), (2.25, True)])
def test_time_is_out_if_an_iteration_like_the_last_one_would_end_after_the_deadline(
    last: float, out: bool, clock: Clock
) -> None:
    limit = TimeLimit(Effort(max_time=10))
    iterate(limit, clock, 5.0, 1.0)
    assert not limit.out_of_time
    iterate(limit, clock, last)
    assert limit.out_of_time is out


def test_a_shorter_iteration_may_fit_again(clock: Clock) -> None:
    limit = TimeLimit(Effort(max_time=10))
    iterate(limit, clock, 6.0)
    assert limit.out_of_time
    iterate(limit, clock, 1.0)
    assert not limit.out_of_time


def test_the_shortest_iteration_is_known_once_one_has_run(clock: Clock) -> None:
    limit = TimeLimit(Effort())
    assert (limit.shortest, limit.out_of_time) == (inf, False)
    iterate(limit, clock, 3.0, 0.5, 2.0)
    assert limit.shortest == 0.5


@pytest.mark.parametrize(
    ("max_time", "longest", "seconds", "deadline"),
    [
        # 300 times the mean of the iterations.
        (30, 0, [0.5, 0.25], 30),
        (30, 180, [0.5, 0.25], 112.5),
        (30, 100, [0.5, 0.25], 100),
        (30, 180, [0.0625], 30),
        (30, 20, [0.5, 0.25], 30),
        (30, 180, [], 30),
    ],
)
def test_slow_iterations_extend_the_time(
    max_time: float, longest: float, seconds: list[float], deadline: float, clock: Clock
) -> None:
    limit = TimeLimit(Effort(max_time=max_time, longest=longest))
    iterate(limit, clock, *seconds)
    # The iteration that has begun tells nothing yet.
    clock.take(7.0)
    assert limit.deadline == 1000 + deadline


def test_what_is_set_aside_extends_the_time_of_slow_iterations_alone(clock: Clock) -> None:
    slow, fixed = (TimeLimit(Effort(max_time=30, longest=longest)) for longest in (180, 0))
    for limit in (slow, fixed):
        clock.now = 1000.0
        iterate(limit, clock, 0.5, 0.5)
        clock.take(4.0)
        limit.set_aside(3.0)
        limit.set_aside(1.0)
        limit.resume()
    # 300 times half a second, and the four seconds.
    assert (slow.deadline, fixed.deadline) == (1154, 1030)
    # Even where no iteration may be slower.
    limit = TimeLimit(Effort(max_time=30, longest=180))
    limit.set_aside(4.0)
    iterate(limit, clock, 64.0)
    assert limit.deadline == limit._began + 184


def test_work_between_two_iterations_is_no_part_of_the_next_one(clock: Clock) -> None:
    limit = TimeLimit(Effort(max_time=30))
    iterate(limit, clock, 1.0)
    clock.take(20.0)
    limit.resume()
    assert not limit.out_of_time
    iterate(limit, clock, 1.0)
    assert (limit.shortest, limit.out_of_time) == (1.0, False)


@pytest.mark.parametrize(("seconds", "out"), [(28.75, False), (29.0, True), (40.0, True)])
def test_after_such_work_no_iteration_begins_at_the_deadline(seconds: float, out: bool, clock: Clock) -> None:
    limit = TimeLimit(Effort(max_time=30))
    iterate(limit, clock, 1.0)
    clock.take(seconds)
    limit.resume()
    assert limit.out_of_time is out


def test_seconds_are_those_since_the_repetition_began(clock: Clock) -> None:
    limit = TimeLimit(Effort())
    clock.take(2.0)
    assert (limit.seconds, limit.seconds_each) == (2.0, 2.0)
    iterate(limit, clock, 1.0, 1.0, 1.0, 1.0)
    assert (limit.seconds, limit.measured_seconds, limit.seconds_each) == (6.0, 6.0, 1.5)
    limit.set_aside(1.5)
    limit.set_aside(1.0)
    assert (limit.seconds, limit.measured_seconds, limit.seconds_each) == (6.0, 3.5, 1.5)


# What is shared.


def run_of(*budgets: Budget, ceiling: Mapping[str, int] | None = None, **effort: Any) -> MeasurementRun:
    plan = Plan("test_a.py::test_b", budgets, Effort(**effort), ceiling=Ceiling(ceiling or {}))
    return MeasurementRun(plan, {}, cast("InnocentGrowth", None))


def test_causes_of_earlier_tests_are_taken_although_there_are_none_yet() -> None:
    plan, causes = Plan("t", (Budget("fd"),)), KnownCauses()
    innocent = InnocentGrowth({})
    run = MeasurementRun(plan, {"kept": int}, innocent, causes)
    assert (run.causes, run.innocent, run.gauges) == (causes, innocent, {"kept": int})
    assert MeasurementRun(plan, {}, innocent).causes is not causes


def test_an_iteration_of_the_warm_up_takes_time_and_is_reported(clock: Clock) -> None:
    found: list[Progress] = []
    stop = follow(found.append)
    try:
        run = run_of(Budget("fd"), warmup=5, iterations=40)
    finally:
        stop()
    clock.take(2.0)
    run.warm_up_done(3)
    assert found == [Progress("warming up", 3, 5, {}, {})]
    assert run.time.shortest == 2.0


# Ceilings.


class Limits:
    """The soft and hard limits of a process; each change is noted."""

    RLIMIT_NOFILE, RLIMIT_AS = 7, 9

    def __init__(self) -> None:
        self.now = {7: (1024, 4096), 9: (1 << 60, 1 << 60)}
        self.changes: list[tuple[int, tuple[int, int]]] = []

    def getrlimit(self, number: int) -> tuple[int, int]:
        return self.now[number]

    def setrlimit(self, number: int, limit: tuple[int, int]) -> None:
        if limit[0] > limit[1]:
            raise ValueError("current limit exceeds maximum limit")
        self.now[number] = limit
        self.changes.append((number, limit))


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Limits in place of those of this process, which has mapped 300 pages, of which 100 are resident."""
    limits = Limits()
    monkeypatch.setitem(sys.modules, "resource", limits)
    statm = SimpleNamespace(read_text=lambda **_given: "300 100 20 1 0 50 0\n")
    monkeypatch.setattr(module, "Path", lambda _path: statm)
    return limits


def test_descriptors_get_a_soft_limit_until_it_is_lifted(limits: Limits) -> None:
    imposed = ImposedCeiling(Ceiling({"fd": 64}))
    assert limits.changes == []
    imposed.impose()
    assert limits.changes == [(7, (64, 4096))]
    imposed.lift()
    imposed.lift()
    assert limits.changes == [(7, (64, 4096)), (7, (1024, 4096))]
    assert (imposed.missing, imposed.in_force) == ({}, {"fd": 64})


def test_memory_that_is_mapped_but_not_resident_does_not_count_against_the_ceiling(limits: Limits) -> None:
    imposed = ImposedCeiling(Ceiling({"rss": 1000 * PAGE}))
    imposed.impose()
    assert limits.now[9][0] == (200 + 1000) * PAGE
    imposed.lift()
    assert limits.now[9] == (1 << 60, 1 << 60)


@pytest.mark.parametrize(("pages", "in_force"), [(100, False), (101, True)])
def test_a_ceiling_below_what_the_process_has_cannot_be_set(pages: int, in_force: bool, limits: Limits) -> None:
    imposed = ImposedCeiling(Ceiling({"rss": pages * PAGE}))
    imposed.impose()
    assert bool(limits.changes) is in_force
    assert ("rss" in imposed.in_force) is in_force
    if not in_force:
        assert imposed.missing["rss"].startswith("its ceiling cannot be set: this process has ")
        assert " before the test starts, more than " in imposed.missing["rss"]


def test_one_that_cannot_be_set_leaves_the_others_in_force(limits: Limits) -> None:
    imposed = ImposedCeiling(Ceiling({"fd": 5000, "rss": 1000 * PAGE}))
    imposed.impose()
    assert imposed.missing == {"fd": "its ceiling cannot be set: current limit exceeds maximum limit"}
    assert imposed.in_force == {"rss": 1000 * PAGE}
    imposed.lift()
    assert limits.now == {7: (1024, 4096), 9: (1 << 60, 1 << 60)}


@pytest.mark.parametrize("error", [OSError("not permitted"), ValueError("too much"), Unavailable("no such limit")])
def test_an_error_of_the_system_is_the_reason(
    error: Exception, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_number: int, _limit: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(limits, "setrlimit", refuse)
    imposed = ImposedCeiling(Ceiling({"fd": 64}))
    imposed.impose()
    assert imposed.missing == {"fd": f"its ceiling cannot be set: {error}"}
    imposed.lift()


def test_without_limits_of_processes_the_reason_is_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    imposed = ImposedCeiling(Ceiling({"fd": 64}))
    imposed.impose()
    assert imposed.missing == {"fd": "its ceiling cannot be set: this system has no resource limits (RLIMIT)"}


def test_without_proc_memory_has_no_ceiling(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(**_given: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(module, "Path", lambda _path: SimpleNamespace(read_text=read_text))
    imposed = ImposedCeiling(Ceiling({"rss": 1000 * PAGE}))
    imposed.impose()
    reason = "resident memory is read from /proc, which exists only on Linux"
    assert imposed.missing == {"rss": f"its ceiling cannot be set: {reason}"}
    assert limits.changes == []


class LimitedDevice:
    """A device that notes its limits."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def limit(self, size: int) -> Callable[[], None]:
        self.found.append(f"limited to {size}")
        return lambda: self.found.append("lifted")


def test_a_device_is_limited_once_it_is_known(limits: Limits) -> None:
    imposed, device = ImposedCeiling(Ceiling({"fd": 64, "vram": 4096})), LimitedDevice()
    imposed.impose()
    assert device.found == []
    imposed.impose_on(cast("Vram", device))
    assert device.found == ["limited to 4096"]
    # The limits of the process are set once.
    assert len(limits.changes) == 1
    imposed.lift()
    assert device.found == ["limited to 4096", "lifted"]
    assert limits.now[7] == (1024, 4096)


def test_without_a_device_its_ceiling_is_missing_and_only_if_there_is_one() -> None:
    imposed = ImposedCeiling(Ceiling({"vram": 4096}))
    imposed.impose_on(None)
    assert imposed.missing == {"vram": "its ceiling cannot be set: there is no device to limit"}
    without = ImposedCeiling(Ceiling())
    without.impose()
    without.impose_on(None)
    without.lift()
    assert (without.missing, without.in_force) == ({}, {})
