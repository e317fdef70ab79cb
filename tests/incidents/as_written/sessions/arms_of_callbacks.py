"""Two callbacks of a user's own: one keeps the loss of each step, the other the mean of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.utils.data import DataLoader

from pytest_leakcheck import Leakcheck

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        return self.layer(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Losses(pl.Callback):
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen.append(outputs["loss"])


class LossesFixed(pl.Callback):
    def __init__(self) -> None:
        self.mean = 0.0

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.mean += (outputs["loss"].item() - self.mean) / (batch_idx + 1)


LOSSES: dict[str, pl.Callback] = {"leaky": Losses(), "fixed": LossesFixed()}


class Judged(pl.Callback):
    def __init__(self, steps: Iterator[int]) -> None:
        self.steps = steps

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        trainer.should_stop = next(self.steps, None) is None


def fit(folder: Path, *callbacks: pl.Callback, batches: int) -> None:
    pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Net(), DataLoader(torch.zeros(batches, 16), batch_size=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("arm", ["leaky", "fixed"])
def test_steps(tmp_path: Path, leakcheck: Leakcheck, arm: str) -> None:
    kept = Losses() if arm == "leaky" else LossesFixed()
    fit(tmp_path, kept, Judged(leakcheck.steps(object=None, heap="1 MiB")), batches=20_000)


@pytest.mark.leakcheck
@pytest.mark.object_budget(0)
@pytest.mark.parametrize("arm", ["leaky", "fixed"])
def test_runs(tmp_path: Path, arm: str) -> None:
    fit(tmp_path, LOSSES[arm], batches=4)
