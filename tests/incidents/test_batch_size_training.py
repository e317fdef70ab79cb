"""Real training runs of Lightning with simulated memory: what the callback records, and what is learnt from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from leakcheck_incidents.batch_size.bench import quick
from leakcheck_incidents.batch_size.fixed import AdaptiveBatchSize
from leakcheck_incidents.batch_size.gauge import gauge_of
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.training import CAPACITY, HEAVY, LIGHT, SAMPLES, Configuration, train, tune
from leakcheck_incidents.synthetic.simulated_device import DeviceOutOfMemory, SimulatedDevice

pytestmark = [
    pytest.mark.laboratory,
    # Of Lightning 2.6 with a newer torch, and of its advice to use more workers.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(CAPACITY)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "factors.json"


def run(
    path: Path,
    device: SimulatedDevice,
    batch: tuple[int, float],
    configuration: Configuration = LIGHT,
    *more: pl.Callback,
) -> tuple[Run, ...]:
    """One training with a factor of a tuned batch size, and the runs that are known afterwards."""
    adaptive = AdaptiveBatchSize(path, configuration.key, gauge_of(device))
    with device.charging():
        train(configuration, adaptive.batch_size(*batch), path.parent, adaptive, *more)
    return adaptive.record.runs


def test_a_run_is_recorded_with_its_own_highest(device: SimulatedDevice, path: Path) -> None:
    """Neither with what is left at its end, nor with the peak of the run before."""
    runs = [run(path, device, (480, factor))[-1] for factor in (0.9, 0.5)]
    assert [one.factor for one in runs] == [0.9, 0.5]
    # 32 layers keep 240 x 4 x 16 floats each, and up to three more are on their way.
    layer = 240 * 4 * 16 * 4 / CAPACITY
    assert runs[1].peak == device.peak() / CAPACITY
    assert 32 * layer <= runs[1].peak <= 36 * layer
    assert device.allocated() < device.peak() / 100


def test_a_run_of_one_step_counts_too(path: Path) -> None:
    (recorded,) = run(path, SimulatedDevice(16 * CAPACITY), (SAMPLES, 1.0))
    assert recorded.peak is not None


def test_running_out_is_recorded_before_the_exception_leaves(device: SimulatedDevice, path: Path) -> None:
    with pytest.raises(DeviceOutOfMemory):
        run(path, device, (480, 0.6), HEAVY)
    assert AdaptiveBatchSize(path, HEAVY.key, gauge_of(device)).record.runs == (Run(0.6, None),)


class Fails(pl.Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        raise ZeroDivisionError


def test_nothing_is_learnt_from_another_failure_or_an_unused_device(
    device: SimulatedDevice, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ZeroDivisionError):
        run(path, device, (480, 0.3), LIGHT, Fails())
    fresh = SimulatedDevice(CAPACITY)
    unused = AdaptiveBatchSize(path, LIGHT.key, gauge_of(fresh))
    train(LIGHT, 100, path.parent, unused)
    assert "nothing was allocated on sim:0; nothing is learned" in caplog.text
    with fresh.charging():
        train(LIGHT, 100, path.parent, unused)
    assert "`batch_size` was not called; nothing is learned" in caplog.text
    assert unused.record.runs == ()


@pytest.mark.parametrize("configuration", [LIGHT, HEAVY], ids=lambda one: one.key)
def test_the_batch_that_the_tuner_found_runs_out_of_memory(
    device: SimulatedDevice, path: Path, configuration: Configuration
) -> None:
    """The tuner runs three steps, and without its margin."""
    with device.charging():
        tuned = tune(configuration, path.parent)
    with pytest.raises(DeviceOutOfMemory):
        run(path, device, (tuned, 1.0), configuration)
