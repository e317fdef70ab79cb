"""The store, the rule and the callback of the write-up, and `AdaptiveBatchSize` in their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import lightning.pytorch as pl
import pytest
import torch

from leakcheck_incidents import AdaptiveBatchSize
from leakcheck_incidents.batch_size.gauge import gauge_of
from leakcheck_incidents.batch_size.training import CAPACITY, HEAVY, Net, trainer
from leakcheck_incidents.synthetic.simulated_device import SimulatedDevice

pytestmark = pytest.mark.filterwarnings("ignore")
NextRun: TypeAlias = "Callable[[Path, SimulatedDevice], tuple[int, pl.Callback]]"
KEY = HEAVY.key
torch.set_num_threads(1)


class AdaptiveBatchSizeFactorDB:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get_factor(self, key: str) -> Any:
        return self.data.setdefault(key, {"config_key": key, "safety_factor": 0.55, "runs": []})["safety_factor"]

    def record_run(self, key: str, peak: float, batch_size: int, success: bool) -> None:
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
        entry["runs"].append(
            {
                "run_id": f"run_{len(entry['runs'])}",
                "timestamp": datetime.now().isoformat(),  # noqa: DTZ005
                "peak_memory_pct": peak,
                "batch_size": batch_size,
                "success": success,
                "notes": f"factor: {factor:.3f} -> {entry['safety_factor']:.3f}",
            }
        )
        entry["runs"] = entry["runs"][-50:]
        self.path.write_text(json.dumps(self.data, indent=2))


class MemoryMonitorCallback(pl.Callback):
    def __init__(  # noqa: PLR0917
        self,
        db: AdaptiveBatchSizeFactorDB,
        key: str,
        batch_size: int,
        gpu: SimulatedDevice,
        check_every: int = 2,
        warmup: int = 2,
    ) -> None:
        self.db, self.key, self.batch_size, self.gpu = db, key, batch_size, gpu
        self.check_every, self.warmup, self.peak = check_every, warmup, 0.0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx >= self.warmup and batch_idx % self.check_every == 0:
            self.peak = max(self.peak, self.gpu.allocated() / CAPACITY)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.peak:
            self.db.record_run(self.key, self.peak, self.batch_size, True)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if isinstance(exception, RuntimeError) and "out of memory" in str(exception):
            self.db.record_run(self.key, 1.0, self.batch_size, False)


TUNED = 480  # by the tuner


def write_up(folder: Path, gpu: SimulatedDevice) -> tuple[int, pl.Callback]:
    db = AdaptiveBatchSizeFactorDB(folder / "batch_size_factors.json")
    size = max(1, int(TUNED * db.get_factor(KEY)))
    return size, MemoryMonitorCallback(db, KEY, size, gpu)


def fixed(folder: Path, gpu: SimulatedDevice) -> tuple[int, pl.Callback]:
    adaptive = AdaptiveBatchSize(folder / "factors.json", KEY, gauge_of(gpu, limit=CAPACITY))
    return adaptive.batch_size(TUNED), adaptive


def run(next_run: NextRun, folder: Path, gpu: SimulatedDevice) -> None:
    size, callback = next_run(folder, gpu)
    trainer(folder, callback).fit(Net(HEAVY, size))


@pytest.fixture(scope="module", params=[write_up, fixed], ids=lambda one: one.__name__)
def learnt(
    request: pytest.FixtureRequest, simulated_device: SimulatedDevice, tmp_path_factory: pytest.TempPathFactory
) -> tuple[NextRun, Path]:
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
def test_next_run(simulated_device: SimulatedDevice, learnt: tuple[NextRun, Path]) -> None:
    next_run, folder = learnt
    with simulated_device.charging():
        run(next_run, folder, simulated_device)


def test_between_steps(simulated_device: SimulatedDevice, tmp_path: Path) -> None:
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
def test_kept(simulated_device: SimulatedDevice, next_run: NextRun, tmp_path: Path) -> None:
    with suppress(RuntimeError), simulated_device.charging():
        run(next_run, tmp_path, simulated_device)
