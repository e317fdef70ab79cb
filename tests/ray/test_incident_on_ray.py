"""Incident 4 with ranks that are Ray actors: the same verdicts as with processes that torch joins."""

from __future__ import annotations

from typing import Any

import pytest

from leakcheck_incidents.catalog import ENGINE_VARIABLE, INCIDENTS
from on_ray import NEEDS_RAY
from projects import Outcome, Project

pytestmark = NEEDS_RAY
INCIDENT = INCIDENTS["rollout_executor"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("rollout_executor"))
    given: dict[str, Any] = {ENGINE_VARIABLE: "ray", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return project.run("-p", "pytest_leakcheck.plugin", "--pyargs", INCIDENT.tests, "-k", "TestRanks", **given)


@pytest.mark.parametrize(("arm", "in_flight"), [("leaky", [64, 128, 256]), ("fixed", [64, 64, 64])])
def test_each_arm_comes_out_as_it_must(ran: Outcome, arm: str, in_flight: list[int]) -> None:
    test = f"TestRanks::test_memory[{arm}]"
    for expected in (one for one in INCIDENT.arms[arm] if one.test == "TestRanks"):
        found = ran.finding(test, expected.resource)
        assert found["verdict"] == expected.verdict, ran.text
        assert expected.slope in (None, found["slope"])
    assert [point["peak"] for point in ran.finding(test, "gauge:in_flight")["points"]] == in_flight
    engines = {one["engine"] for one in ran.scaled.values()}
    assert engines == {"ray"}
