"""The callback in a real fit of Lightning: a step per batch, leaky and fixed, and an end also where the fit fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_leakcheck.watch.history import read_histories

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched through /proc")

FIT = """
import os, sys, warnings
warnings.simplefilter("ignore")
import lightning, torch
from pytest_leakcheck.watch.training import lightning_callback

kept = []

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, number):
        kept.append(os.open(os.devnull, os.O_RDONLY))
        if sys.argv[1] == "fixed":
            os.close(kept.pop())
        if sys.argv[1] == "failing" and number == 5:
            raise ValueError("the fit fails")
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = torch.utils.data.DataLoader(torch.zeros(100, 1))
watching = lightning_callback("fit.jsonl", interval=0.0)
lightning.Trainer(
    max_epochs=1, callbacks=[watching], accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Model(), data)
"""


@pytest.mark.parametrize(
    ("arm", "said", "steps"),
    [
        ("leaky", "+1.00 per step", 100),
        ("fixed", "no growth seen; would have caught ≥ ", 100),
        pytest.param("failing", "", 5, marks=pytest.mark.laboratory),
    ],
)
def test_a_fit(tmp_path: Path, arm: str, said: str, steps: int) -> None:
    script = tmp_path / "fit.py"
    script.write_text(FIT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, arm], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == (1 if arm == "failing" else 0), done.stderr
    fd = next(line for line in done.stderr.splitlines() if line.startswith("  fd "))
    assert said in fd
    (history,) = read_histories(tmp_path / "fit.jsonl")
    assert (history.step, history.ended) == (steps, "closed by the training run")
