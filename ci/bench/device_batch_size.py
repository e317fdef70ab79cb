"""Train on a real accelerator with the adaptive batch size, and print the peak memory of each training run.

The script needs an accelerator that torch sees, and `pip install -e '.[batch]' ./fixtures`. The limit is 5 % of the
device's memory, so that the runs stay short.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader

from leakcheck_incidents.batch_size import fixed
from leakcheck_incidents.batch_size.callback import PeakRecorder
from leakcheck_incidents.batch_size.gauge import find_gauge
from leakcheck_incidents.batch_size.keys import build_key
from leakcheck_incidents.batch_size.store import Store
from leakcheck_incidents.batch_size.tuning import tuned_batch_size
from pytest_leakcheck.probes.base import Unavailable

SHARE: Final = 0.05
RUNS: Final = 8
WIDTH: Final = 256
LONGEST: Final = 256


class Net(pl.LightningModule):
    """A transformer over sequences of 64 to 256 steps."""

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True)
        self.net = torch.nn.TransformerEncoder(layer, 4)

    def train_dataloader(self) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(1)
        lengths: Any = torch.randint(LONGEST // 4, LONGEST + 1, (4096,), generator=generator).tolist()
        return DataLoader(lengths, batch_size=self.batch_size, collate_fn=batch)

    def training_step(self, given: torch.Tensor, _number: int) -> torch.Tensor:
        return self.net(given).mean()  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), 1e-4)


def batch(lengths: list[int]) -> torch.Tensor:
    """Return a batch that is as long as its longest sample."""
    return torch.zeros(len(lengths), max(lengths), WIDTH)


def main() -> int:
    """Print a row for each training run; return 0, or 3 if there is no accelerator."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        gauge = find_gauge()
    except Unavailable as error:
        print(error)
        return 3
    gauge = replace(gauge, limit=int(SHARE * (gauge.devices[0].capacity() or 0)))
    torch.cuda.set_per_process_memory_fraction(SHARE)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"accelerator": "gpu", "devices": 1, "max_steps": 6, "logger": False}
        options |= dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)

        def trainer(*callbacks: pl.Callback) -> pl.Trainer:
            return pl.Trainer(**options, callbacks=list(callbacks), default_root_dir=folder)

        store, key = Store(Path(folder, "factors.json")), build_key("hcrl_sa", "gat", "student")
        tuned = tuned_batch_size(trainer(), Net(), init_val=16)
        print(f"{gauge.kind}: {tuned} samples fit\n\n| run | samples | peak |\n| --- | ---: | ---: |")
        for run in range(1, RUNS + 1):
            choice = fixed.batch_size(store, key, gauge.kind, tuned)
            try:
                trainer(PeakRecorder(choice, store, gauge)).fit(Net(choice.batch_size))
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
            peak = store.record(key, gauge.kind).entries[-1].run.peak
            print(f"| {run} | {choice.batch_size} | {'out of memory' if peak is None else f'{peak:.1%}'} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
