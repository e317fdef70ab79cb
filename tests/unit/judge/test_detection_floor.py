"""The printed floor: a leak of that size is called one, and well below it none is claimed to be."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from typing import TypeAlias

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import ADAPTIVE, Effort
from pytest_leakcheck.judge.growth import detection_floor, growth, looks
from pytest_leakcheck.judge.judge_series import RETAINED, Context, judge
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import RESOURCES, Resource

FIRST_LOOK = 16
Noise: TypeAlias = Callable[[random.Random], int]


def planted(readings: list[int], resource: Resource, slope: float) -> list[int]:
    """The readings, with a leak that comes in whole pieces."""
    step = resource.step
    return [value + int(slope * i) // step * step for i, value in enumerate(readings)]


def state(readings: list[int], resource: Resource) -> str:
    return growth(readings, resource.tolerance, FIRST_LOOK).state


def judged(readings: list[int], resource: Resource) -> str:
    """What a run comes to that goes on until it is judged."""
    for n in looks(len(readings) - 1):
        seen = state(readings[: n + 1], resource)
        if (seen == "growing" and n >= RETAINED.horizon) or (seen == "flat" and n >= RETAINED.clean):
            return seen
    return "undecided"


def floor_of(readings: list[int], resource: Resource) -> float:
    found = detection_floor(readings, resource, resource.tolerance, FIRST_LOOK)
    assert found is not None
    return found


def steady(source: random.Random) -> int:
    return source.randrange(10_000)


def spiky(source: random.Random) -> int:
    return source.randrange(200) + (5000 if source.random() < 0.1 else 0)


def one_sided(source: random.Random) -> int:
    return int(3000 * source.random() ** 4)


@pytest.mark.laboratory
@pytest.mark.parametrize("name", ["heap", "object", "block", "rss"])
@pytest.mark.parametrize("noise", [steady, spiky, one_sided])
@pytest.mark.parametrize("n", [58, 229])
def test_a_leak_at_the_floor_is_found_in_another_run(name: str, noise: Noise, n: int) -> None:
    resource, found = RESOURCES[name], 0
    for seed in range(100):
        source = random.Random(seed)
        floor = floor_of([noise(source) for _ in range(n + 1)], resource)
        again = [noise(source) for _ in range(ADAPTIVE + 1)]
        found += judged(planted(again, resource, floor), resource) == "growing"
    assert found >= 99


@pytest.mark.parametrize("name", ["heap", "object", "block", "mmap", "rss"])
def test_without_noise_nothing_well_below_the_floor_shows(name: str) -> None:
    resource = RESOURCES[name]
    floor = floor_of([7] * 59, resource)
    assert state(planted([7] * 59, resource, floor), resource) == "growing"
    assert state(planted([7] * 59, resource, floor / 5), resource) != "growing"


def test_noise_raises_the_floor_and_iterations_lower_it() -> None:
    heap, source = RESOURCES["heap"], random.Random(0)
    noisy = [source.randrange(10_000) for _ in range(230)]
    assert floor_of([0] * 59, heap) < floor_of(noisy, heap) < floor_of(noisy[:59], heap)


def outcome_at_random(source: random.Random, chance: float, iterations: int) -> str:
    """The outcome for descriptors that are kept at random: by default, or after a given number of iterations."""
    most = iterations or ADAPTIVE
    readings = [11]
    for look in looks(most):
        while len(readings) <= look:
            readings.append(readings[-1] + (source.random() < chance))
        series = Series("fd", tuple(readings), (0,) * look)
        verdict = judge(series, Budget("fd"), Context(final=look >= most, effort=Effort(iterations=iterations)))
        if verdict is not None:
            return verdict.outcome
    raise AssertionError("undecided at the end")


@pytest.mark.parametrize(("iterations", "quiet"), [(0, 13), (20, 20), (50, 50), (200, 200)])
def test_a_descriptor_that_is_kept_at_random_as_often_as_the_floor_says_is_no_ok(iterations: int, quiet: int) -> None:
    floor = detection_floor([5] * (quiet + 1), RESOURCES["fd"], 0.0, FIRST_LOOK, quiet)
    assert floor is not None
    source = random.Random(1)
    outcomes = [outcome_at_random(source, floor, iterations) for _ in range(500)]
    assert outcomes.count("ok") <= 5
    if not iterations:
        assert outcomes.count("leak") >= 495
    fifth = [outcome_at_random(source, floor / 5, iterations) for _ in range(100)]
    assert fifth.count("ok") > 10


def test_a_series_that_is_too_short_has_none() -> None:
    heap = RESOURCES["heap"]
    assert detection_floor([5] * 6, heap, heap.tolerance, FIRST_LOOK) is None


@pytest.mark.parametrize("name", ["heap", "object", "block", "mmap", "rss"])
def test_no_floor_is_below_one_step_of_the_counter(name: str) -> None:
    """An arena of a megabyte in 58 iterations is one step, whatever the objects in it amount to per iteration."""
    resource = RESOURCES[name]
    assert floor_of([7] * 59, resource) * 58 >= resource.step
    arenas = [i * 5 * 1024 // resource.step * resource.step for i in range(59)]
    if name == "mmap":
        assert state(arenas, resource) != "growing"
        assert floor_of([7] * 59, resource) > 5 * 1024


def test_the_floor_is_that_of_the_worst_of_eight_orders_of_the_steps() -> None:
    """With four orders it would be 36, which is too low; sixteen take twice as long, and it would be 44."""
    pick = random.Random(1)
    steps = (300 * pick.randint(0, 3) * (pick.random() < 0.1) - 100 * (pick.random() < 0.05) for _ in range(80))
    readings = list(accumulate(steps, initial=0))
    assert detection_floor(readings, RESOURCES["heap"], 16.0, FIRST_LOOK) == 40.0


@pytest.mark.parametrize(("quiet", "floor"), [(13, 6 / 13), (30, 8.5 / 30), (40, 10 / 40)])
def test_the_floor_of_a_count_follows_from_its_quiet_iterations(quiet: int, floor: float) -> None:
    assert detection_floor([7] * (quiet + 1), RESOURCES["fd"], 0.0, FIRST_LOOK, quiet) == floor
