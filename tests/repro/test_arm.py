"""The command that runs an arm."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leakcheck_incidents.catalog import INCIDENTS, Expectation
from leakcheck_incidents.repro.check_expectations import check_arm
from leakcheck_incidents.repro.run_arm import command_of
from pytest_leakcheck.model.finding import Outcome, Verdict


@pytest.mark.parametrize("name", INCIDENTS)
def test_it_runs_the_arm_of_that_incident(name: str) -> None:
    incident = INCIDENTS[name]
    command = command_of(incident, "leaky", Path("report.json"))
    loaded = [word for option, word in pairwise(command) if option == "-p"]
    assert "pytest_leakcheck.plugin" in loaded
    option, tests, *rest = command[-4:]
    assert (option, rest) == ("-k", ["--pyargs", f"leakcheck_incidents.{name}"])
    assert tests.startswith("leaky and (")
    assert all(one.test in tests for one in incident.arms["leaky"])


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("ok", "as expected  "),
        ("leak", "UNEXPECTED  "),
        ("inconclusive", "COULD NOT TELL  "),
        ("unavailable", "COULD NOT "),
    ],
)
def test_an_arm_that_could_not_tell_is_neither_right_nor_wrong(outcome: Outcome, said: str) -> None:
    incident = replace(INCIDENTS["batch_size"], arms={"fixed": (Expectation("test_per_run[fixed]", "fd", "ok"),)})
    verdict = Verdict("fd", outcome, reason="6 iterations, 13 needed")
    run: Any = SimpleNamespace(arm="fixed", verdicts=[(SimpleNamespace(test="test_per_run[fixed]"), verdict)])
    (check,) = check_arm(incident, run).checks
    assert check.text.startswith(said)
    assert (check.right, check.untold) == (outcome == "ok", said.startswith("COULD"))


@pytest.mark.parametrize(
    ("name", "expected", "slope", "said"),
    [
        (
            "hub_upload",
            Expectation("test_peak_of_operations[leaky]", "rss", "over_budget"),
            20 << 20,
            ", 20.0 MiB per shard, ≈ 17.6 GiB at the 902 shards of the incident",
        ),
        ("batch_size", Expectation("test_heavy[leaky]", "vram", "over_budget"), 0, "vram over_budget"),
    ],
)
def test_growth_is_projected_to_the_size_of_the_incident_and_a_peak_has_no_rate(
    name: str, expected: Expectation, slope: float, said: str
) -> None:
    verdict = Verdict(expected.resource, "over_budget", slope=slope)
    run: Any = SimpleNamespace(arm="leaky", verdicts=[(SimpleNamespace(test=expected.test), verdict)])
    checks = check_arm(replace(INCIDENTS[name], arms={"leaky": (expected,)}), run).checks
    assert checks[0].text.endswith(said)
