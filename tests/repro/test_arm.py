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
