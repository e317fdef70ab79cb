"""Code as users write it: callbacks that keep a value per step, the callback of the write-up, a script with the policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from projects import Outcome, Project

LOSSES = "arms_of_callbacks.py"
# With the two intervals of the write-up (50 steps, after the first 20) scaled to a run of ten steps.
SYSTEM = "arms_of_the_batch_size.py"
SCRIPT = """
import sys
from pathlib import Path

from leakcheck_incidents import read_factors
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store

KEY, DEVICE = "set_02_vgae_autoencoder", "my device"
begin = read_factors(Path("batch_size_factors.json"))[KEY]
store = Store(Path("factors.json"))
for _ in range(6):
    factor = store.record(KEY, DEVICE).propose(begin).factor
    peak = 0.2 + factor  # what a training run would need
    store.add(KEY, DEVICE, Run(factor, peak if peak <= 1 else None))
print(*(run.factor for run in store.record(KEY, DEVICE).runs))
assert not {"lightning", "torch", "pytest"} & set(sys.modules)
"""


def run(project: Project, program: str, tests: str) -> Outcome:
    """In CI, where inconclusive is red."""
    project.copy(program)
    return project.run(
        *("-p", "leakcheck_incidents.simulated", "-k", tests, "--leakcheck-max-time=600"), CI="1", limit=900
    )


def test_a_callback_that_keeps_a_loss_per_step_is_named(project: Project) -> None:
    ran = run(project, LOSSES, "test_steps")
    assert ran.verdicts["test_steps[leaky]", "heap"] == "leak", ran.text
    assert {one["verdict"] for one in ran.findings if "fixed" in one["test"]} == {"ok"}, ran.text
    assert ran.last_line.startswith("1 failed, 1 passed")
    found = ran.finding("test_steps[leaky]", "heap")
    assert found["owner"]["name"].endswith(".callbacks[0].seen")
    assert "in Losses.on_train_batch_end()" in ran.one_line


@pytest.mark.laboratory
def test_a_callback_that_outlives_its_runs_is_named(project: Project) -> None:
    ran = run(project, LOSSES, "test_runs")
    found = ran.finding("test_runs[leaky]", "heap")
    assert (found["verdict"], found["owner"]["name"]) == ("leak", "test_it.LOSSES[a str of 5].seen")
    assert ran.last_line.startswith("1 failed, 1 passed")


@pytest.mark.laboratory
def test_the_rule_of_the_write_up_runs_out_of_memory_and_the_policy_does_not(project: Project) -> None:
    ran = run(project, SYSTEM, "test_next_run or test_between_steps")
    found = ran.finding("test_next_run[write_up]", "vram")
    assert (found["verdict"], found["site"]["function"]) == ("over_budget", "Net.training_step"), ran.text
    assert ran.finding("test_next_run[fixed]", "vram")["verdict"] == "ok", ran.text
    assert ran.last_line.startswith("1 failed, 2 passed")


@pytest.mark.laboratory
def test_the_callback_of_the_write_up_keeps_nothing(project: Project) -> None:
    ran = run(project, SYSTEM, "test_kept")
    assert {one["verdict"] for one in ran.findings} == {"ok"}, ran.text
    assert ran.last_line.startswith("2 passed")


def test_a_script_uses_the_policy_with_a_factor_that_was_brought_over(tmp_path: Path) -> None:
    theirs = {"safety_factor": 0.38, "runs": [{"peak_memory_pct": 0.62, "success": True}]}
    (tmp_path / "batch_size_factors.json").write_text(json.dumps({"set_02_vgae_autoencoder": theirs}))
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, check=True, capture_output=True, text=True)
    factors = [float(word) for word in done.stdout.split()]
    assert factors[0] == 0.38
    assert factors[-1] == pytest.approx(0.7, abs=0.01)
