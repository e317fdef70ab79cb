"""The cases of the corpus, each in a separate process: forked or started, they have the same verdicts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cases.catalog import ARMS
from projects import UNNAMED, Project
from sessions import by_arm, run_arms, write_arms

pytestmark = [
    pytest.mark.laboratory,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
]

STARTED = """
    from pytest_leakcheck.runner.processes import fork_server
    fork_server.unsupported = lambda: "to compare"
"""


def verdicts(folder: Path, arms: list[str], conftest: str, how: str) -> dict[tuple[str, str], str]:
    folder.mkdir()
    project = Project(folder)
    write_arms(project, arms, UNNAMED + conftest)
    outcome = run_arms(project, "--leakcheck-isolate", "-p", "no:hurried")
    assert {one["environment"].get("not forked", "") for one in outcome.recordings} == {how}
    found = by_arm(outcome, arms)
    # Which resources beside a leak had enough readings to be called `ok` differs from run to run.
    return {(arm, one["resource"]): one["verdict"] for arm in arms for one in found[arm] if one["verdict"] != "ok"}


def test_the_verdicts_of_forked_processes_are_those_of_started_ones(tmp_path: Path) -> None:
    """A sixth of the arms, of all families: a process that is started for each of them takes a second."""
    arms = [arm for arm, (case, _call) in ARMS.items() if not case.timed and not case.doubt][::6]
    forked = verdicts(tmp_path / "forked", arms, "", "")
    started = verdicts(tmp_path / "started", arms, STARTED, "to compare")
    assert forked
    assert forked == started
