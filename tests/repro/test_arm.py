"""The command that runs an arm."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.repro.run_arm import command_of


@pytest.mark.parametrize("name", INCIDENTS)
def test_it_runs_the_arm_of_that_incident_with_the_plugins_that_it_needs(name: str) -> None:
    incident = INCIDENTS[name]
    command = command_of(incident, "leaky", Path("report.json"))
    loaded = [word for option, word in pairwise(command) if option == "-p"]
    assert {"leakcheck_incidents.material", *incident.plugins} <= set(loaded)
    assert ("leakcheck_incidents.simulated" in loaded) == (name == "batch_size")
    option, tests, *rest = command[-4:]
    assert (option, rest) == ("-k", ["--pyargs", f"leakcheck_incidents.{name}"])
    assert tests.startswith("leaky and (")
    assert all(one.test in tests for one in incident.arms["leaky"])
