"""The callback in a real fit of Lightning: a step per batch, leaky and fixed, and an end also where the fit fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_leakcheck.watch.history import read_histories

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched through /proc")


@pytest.mark.parametrize(
    ("arm", "said", "steps"),
    [
        ("leaky", "+1.00 per step", 100),
        ("fixed", "no growth seen; would have caught ≥ ", 100),
        pytest.param("failing", "", 5, marks=pytest.mark.laboratory),
    ],
)
def test_a_fit(tmp_path: Path, arm: str, said: str, steps: int) -> None:
    script = Path(__file__).with_name("sessions") / "program_that_fits.py"
    done = subprocess.run(
        [sys.executable, script, arm], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == (1 if arm == "failing" else 0), done.stderr
    fd = next(line for line in done.stderr.splitlines() if line.startswith("  fd "))
    assert said in fd
    (history,) = read_histories(tmp_path / "fit.jsonl")
    assert (history.step, history.ended) == (steps, "closed by the training run")
