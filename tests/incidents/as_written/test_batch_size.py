"""Code as users write it: callbacks that keep a value per step, the callback of the write-up, a script with the policy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from projects import Outcome, Project

# Two callbacks of a user's own: one keeps the loss of each step, the other the mean of them.
LOSSES = """
import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Losses(pl.Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen.append(outputs["loss"])


class LossesFixed(pl.Callback):
    def __init__(self):
        self.mean = 0.0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.mean += (outputs["loss"].item() - self.mean) / (batch_idx + 1)


LOSSES = {"leaky": Losses(), "fixed": LossesFixed()}


class Judged(pl.Callback):
    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        trainer.should_stop = next(self.steps, None) is None


def fit(folder, *callbacks, batches):
    pl.Trainer(accelerator="cpu", max_epochs=1, callbacks=list(callbacks), logger=False, default_root_dir=folder,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Net(), DataLoader(torch.zeros(batches, 16), batch_size=1))


@pytest.mark.parametrize("arm", ["leaky", "fixed"])
def test_steps(tmp_path, leakcheck, arm):
    kept = Losses() if arm == "leaky" else LossesFixed()
    fit(tmp_path, kept, Judged(leakcheck.steps(object=None, heap="1 MiB")), batches=20_000)


@pytest.mark.leakcheck
@pytest.mark.object_budget(0)
@pytest.mark.parametrize("arm", ["leaky", "fixed"])
def test_runs(tmp_path, arm):
    fit(tmp_path, LOSSES[arm], batches=4)
"""
# The store, the rule and the callback of the write-up, with its two intervals (50 steps, after the first 20) scaled to a
# run of ten steps; and `AdaptiveBatchSize` in their place.
SYSTEM = """
import json
from contextlib import suppress
from datetime import datetime

import lightning.pytorch as pl
import pytest
import torch

from leakcheck_incidents import AdaptiveBatchSize
from leakcheck_incidents.batch_size.gauge import gauge_of
from leakcheck_incidents.batch_size.training import CAPACITY, HEAVY, Net, trainer

pytestmark = pytest.mark.filterwarnings("ignore")
KEY = HEAVY.key
torch.set_num_threads(1)


class AdaptiveBatchSizeFactorDB:
    def __init__(self, path):
        self.path = path
        self.data = json.loads(path.read_text()) if path.exists() else {}

    def get_factor(self, key):
        return self.data.setdefault(key, {"config_key": key, "safety_factor": 0.55, "runs": []})["safety_factor"]

    def record_run(self, key, peak, batch_size, success):
        entry, factor = self.data[key], self.get_factor(key)
        if not success:
            change = -0.15
        elif peak < 0.50:
            change = 0.5 * (0.90 - peak)
        elif peak < 0.70:
            change = 0.3 * (0.90 - peak)
        elif peak < 0.85:
            change = 0.1 * (0.90 - peak)
        elif peak < 0.95:
            change = 0.2 * (0.90 - peak)
        else:
            change = 0.5 * (0.90 - peak)
        entry["safety_factor"] = max(0.3, min(0.8, factor + 0.3 * change))
        entry["runs"].append({
            "run_id": f"run_{len(entry['runs'])}",
            "timestamp": datetime.now().isoformat(),
            "peak_memory_pct": peak,
            "batch_size": batch_size,
            "success": success,
            "notes": f"factor: {factor:.3f} -> {entry['safety_factor']:.3f}",
        })
        entry["runs"] = entry["runs"][-50:]
        self.path.write_text(json.dumps(self.data, indent=2))


class MemoryMonitorCallback(pl.Callback):
    def __init__(self, db, key, batch_size, gpu, check_every=2, warmup=2):
        self.db, self.key, self.batch_size, self.gpu = db, key, batch_size, gpu
        self.check_every, self.warmup, self.peak = check_every, warmup, 0.0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx >= self.warmup and batch_idx % self.check_every == 0:
            self.peak = max(self.peak, self.gpu.allocated() / CAPACITY)

    def on_train_end(self, trainer, pl_module):
        if self.peak:
            self.db.record_run(self.key, self.peak, self.batch_size, True)

    def on_exception(self, trainer, pl_module, exception):
        if isinstance(exception, RuntimeError) and "out of memory" in str(exception):
            self.db.record_run(self.key, 1.0, self.batch_size, False)


TUNED = 480  # by the tuner


def write_up(folder, gpu):
    db = AdaptiveBatchSizeFactorDB(folder / "batch_size_factors.json")
    size = max(1, int(TUNED * db.get_factor(KEY)))
    return size, MemoryMonitorCallback(db, KEY, size, gpu)


def fixed(folder, gpu):
    adaptive = AdaptiveBatchSize(folder / "factors.json", KEY, gauge_of(gpu, limit=CAPACITY))
    return adaptive.batch_size(TUNED), adaptive


def run(next_run, folder, gpu):
    size, callback = next_run(folder, gpu)
    trainer(folder, callback).fit(Net(HEAVY, size))


@pytest.fixture(scope="module", params=[write_up, fixed], ids=lambda one: one.__name__)
def learnt(request, simulated_device, tmp_path_factory):
    folder = tmp_path_factory.mktemp("learnt")
    lift = simulated_device.limit(CAPACITY)
    for _ in range(7):
        with suppress(RuntimeError), simulated_device.charging():
            run(request.param, folder, simulated_device)
    lift()
    return request.param, folder


@pytest.mark.leakcheck(iterations=13, max_time=600)
@pytest.mark.vram_budget(0, peak="3.672 MiB", unclosed="allow")
@pytest.mark.leakcheck_ceiling(vram="4 MiB")
def test_next_run(simulated_device, learnt):
    next_run, folder = learnt
    with simulated_device.charging():
        run(next_run, folder, simulated_device)


def test_between_steps(simulated_device, tmp_path):
    db = AdaptiveBatchSizeFactorDB(tmp_path / "batch_size_factors.json")
    db.get_factor(KEY)
    monitor = MemoryMonitorCallback(db, KEY, 199, simulated_device)
    simulated_device.reset_peak()
    with simulated_device.charging():
        trainer(tmp_path, monitor).fit(Net(HEAVY, 199))
    assert monitor.peak < 0.15
    assert 0.80 < simulated_device.peak() / CAPACITY < 0.95


@pytest.mark.leakcheck(max_time=600, resources=["fd", "thread"])
@pytest.mark.fd_budget(0)
@pytest.mark.thread_budget(0)
@pytest.mark.parametrize("next_run", [write_up, fixed])
def test_kept(simulated_device, next_run, tmp_path):
    with suppress(RuntimeError), simulated_device.charging():
        run(next_run, tmp_path, simulated_device)
"""
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


def run(project: Project, text: str, tests: str) -> Outcome:
    """In CI, where inconclusive is red."""
    project.write("test_it.py", text)
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
