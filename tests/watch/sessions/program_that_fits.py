"""A fit of Lightning that leaks in each step, or not."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")
import lightning
import torch

from pytest_leakcheck.watch.training import lightning_callback

kept: list[int] = []


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, number: int) -> Any:
        kept.append(os.open(os.devnull, os.O_RDONLY))
        if sys.argv[1] == "fixed":
            os.close(kept.pop())
        if sys.argv[1] == "failing" and number == 5:
            raise ValueError("the fit fails")
        return self.layer(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = torch.utils.data.DataLoader(torch.zeros(100, 1))  # type: ignore[arg-type, var-annotated]
watching = lightning_callback("fit.jsonl", interval=0.0)
lightning.Trainer(
    max_epochs=1,
    callbacks=[watching],
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(Model(), data)
