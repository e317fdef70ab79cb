"""Incident 4: a cap for all ranks that each is given, caught over worlds; the fixed factory, silent and not throttled."""

from __future__ import annotations

import pytest

from leakcheck_incidents.catalog import INCIDENTS, Expectation
from projects import Outcome, Project

pytestmark = pytest.mark.laboratory

INCIDENT = INCIDENTS["rollout_executor"]
MIB = 1 << 20
# Plugins that play no part would be loaded by each of some forty processes.
LEAN = "-p pytest_leakcheck.plugin -p xdist -n 2"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("rollout_executor"))
    return project.run("--pyargs", INCIDENT.tests, limit=900, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS=LEAN)


def points(ran: Outcome, test: str, resource: str = "gauge:in_flight") -> dict[int, float]:
    return {point["size"]: point["peak"] for point in ran.finding(test, resource)["points"]}


@pytest.mark.parametrize(("arm", "expected"), [(arm, one) for arm, all_of in INCIDENT.arms.items() for one in all_of])
def test_each_arm_comes_out_as_it_must(ran: Outcome, arm: str, expected: Expectation) -> None:
    about = [
        one
        for one in ran.findings
        if expected.test in one["test"] and f"[{arm}" in one["test"] and one["resource"] == expected.resource
    ]
    assert about, ran.text
    assert about[0]["verdict"] == expected.verdict, ran.text
    assert expected.slope in (None, about[0]["slope"])


@pytest.mark.parametrize(
    ("test", "totals"),
    [
        ("test_as_it_was_met[leaky]", {1: 64, 2: 128, 4: 256, 8: 512}),
        ("test_as_it_was_met[fixed]", {1: 64, 2: 64, 4: 64, 8: 64}),
        ("test_without_modifiers[leaky]", {1: 64, 2: 128, 4: 256}),
        ("test_without_modifiers[fixed]", {1: 64, 2: 64, 4: 64}),
        ("test_concurrency_alone[leaky-only-batch]", {1: 64, 3: 192, 9: 576}),
        ("test_concurrency_alone[fixed]", {1: 64, 3: 63, 9: 63}),
        ("test_staleness_alone[leaky-only-concurrent]", {1: 64, 2: 128, 4: 256}),
        ("test_staleness_alone[fixed]", {1: 64, 2: 64, 4: 64}),
        ("TestRanks::test_memory[leaky]", {1: 64, 2: 128, 4: 256}),
        ("TestRanks::test_memory[fixed]", {1: 64, 2: 64, 4: 64}),
    ],
)
def test_what_is_in_flight_over_the_ranks(ran: Outcome, test: str, totals: dict[int, int]) -> None:
    assert points(ran, test) == totals
    verdict = "ok" if max(totals.values()) <= 64 else "over_budget"
    assert ran.finding(test, "gauge:in_flight")["verdict"] == verdict


@pytest.mark.parametrize(("arm", "held"), [("leaky", {1: 64, 2: 128, 4: 256}), ("fixed", {1: 64, 2: 64, 4: 64})])
def test_memory_of_the_ranks_is_that_of_what_is_in_flight(ran: Outcome, arm: str, held: dict[int, int]) -> None:
    peaks = points(ran, f"TestRanks::test_memory[{arm}]", "rss")
    for world_size, count in held.items():
        # A rank's threads, their stacks and the executor come to less than 4 MiB.
        assert count * MIB <= peaks[world_size] <= count * MIB + 4 * MIB * world_size


def test_on_simulated_accelerators_a_rank_of_the_leaky_arm_runs_out_of_memory(ran: Outcome) -> None:
    assert "BackgroundError: in the background: DeviceOutOfMemory: CUDA out of memory (simulated)" in ran.text
    assert "failed in a separate process at world_size=4, rank" in ran.text
    found = ran.finding("TestOnDevice::test_memory[fixed]", "vram")
    assert (found["verdict"], found["kind"]) == ("ok", "simulated")
    # Over all ranks: each has a device of its own, with 16 rollouts on it.
    of_one = 16 * 400 * MIB
    assert points(ran, "TestOnDevice::test_memory[fixed]", "vram") == {1: of_one, 2: 2 * of_one, 4: 4 * of_one}
