"""Lightning's own tuner on a simulated device: what it finds, and where it needs help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from leakcheck_incidents.batch_size import tuning
from leakcheck_incidents.batch_size.bench import quick
from leakcheck_incidents.batch_size.callback import PeakRecorder
from leakcheck_incidents.batch_size.choice import choose
from leakcheck_incidents.batch_size.gauge import gauge_of
from leakcheck_incidents.batch_size.store import Store
from leakcheck_incidents.batch_size.training import CAPACITY, HEAVY, LIGHT, SAMPLES, Net, trainer, tune
from leakcheck_incidents.synthetic.simulated_device import SimulatedDevice

pytestmark = [
    pytest.mark.laboratory,
    # Of Lightning 2.6 with a newer torch, and of its advice to use more workers.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]
# What fits for three steps, of either configuration.
TUNED = 454


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(CAPACITY)


@pytest.mark.parametrize("mode", ["power", "binsearch"])
def test_what_it_finds_fits_and_is_not_derated(device: SimulatedDevice, tmp_path: Path, mode: Any) -> None:
    model = Net(LIGHT)
    with device.charging():
        found = tuning.tuned_batch_size(trainer(tmp_path), model, mode, init_val=227)
    assert model.batch_size == found == TUNED


def test_its_margin_may_be_had_back(device: SimulatedDevice, tmp_path: Path) -> None:
    with device.charging():
        assert tuning.tuned_batch_size(trainer(tmp_path), Net(LIGHT), init_val=227, margin=0.05) == int(TUNED * 0.95)


@pytest.mark.parametrize("mode", ["power", "binsearch"])
def test_where_not_one_sample_fits_it_is_one(tmp_path: Path, mode: Any) -> None:
    class Large(Net):
        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            torch.zeros(1 << 20)
            return super().training_step(batch, number)

    model, device = Large(LIGHT), SimulatedDevice(2 << 20)
    with device.charging():
        assert tuning.tuned_batch_size(trainer(tmp_path), model, mode, init_val=2) == 1
    assert model.batch_size == 1


def test_it_ends_where_the_whole_data_set_does_not_fit(tmp_path: Path) -> None:
    """Lightning 2.6 asks the same size over and over there, so it is held below the data set's."""
    device = SimulatedDevice(2 * CAPACITY)
    steps = 0

    class Counted(Net):
        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            nonlocal steps
            steps += 1
            assert steps < 60, "it does not end"
            return super().training_step(batch, number)

    with device.charging():
        found = tuning.tuned_batch_size(trainer(tmp_path), Counted(LIGHT), init_val=1024)
    assert 512 <= found < SAMPLES


def test_it_records_nothing(device: SimulatedDevice, tmp_path: Path) -> None:
    store = Store(tmp_path / "factors.json")
    recorder = PeakRecorder(choose(LIGHT.key, 480, 0.5, ""), store, gauge_of(device))
    with device.charging():
        tuning.tuned_batch_size(trainer(tmp_path, recorder), Net(LIGHT), init_val=240)
    assert store.read() == {}


def test_it_sees_three_steps_and_so_not_the_long_samples(device: SimulatedDevice, tmp_path: Path) -> None:
    with device.charging():
        assert tune(LIGHT, tmp_path) == tune(HEAVY, tmp_path) == TUNED
