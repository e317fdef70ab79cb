"""Real training runs of Lightning with simulated memory: what the callback records, and what is learnt from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from leakcheck_incidents.batch_size.bench import quick
from leakcheck_incidents.batch_size.callback import PeakRecorder
from leakcheck_incidents.batch_size.choice import Choice, choose
from leakcheck_incidents.batch_size.gauge import gauge_of
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store
from leakcheck_incidents.batch_size.training import CAPACITY, HEAVY, LIGHT, SAMPLES, Configuration, train
from leakcheck_incidents.synthetic.simulated_device import DeviceOutOfMemory, SimulatedDevice

pytestmark = [
    pytest.mark.laboratory,
    # Of Lightning 2.6 with a newer torch, and of its advice to use more workers.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]
KEY = LIGHT.key


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture
def device() -> SimulatedDevice:
    return SimulatedDevice(CAPACITY)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "factors.json")


def run(
    store: Store, device: SimulatedDevice, choice: Choice, configuration: Configuration = LIGHT, *more: pl.Callback
) -> tuple[Run, ...]:
    """One training, and the runs that are known afterwards."""
    with device.charging():
        train(configuration, choice, store.path.parent, PeakRecorder(choice, store, gauge_of(device)), *more)
    return store.record(choice.key, device.kind).runs


def test_a_run_is_recorded_with_its_own_highest(device: SimulatedDevice, store: Store) -> None:
    """Neither with what is left at its end, nor with the peak of the run before."""
    runs = [run(store, device, choose(KEY, 480, factor, ""))[-1] for factor in (0.9, 0.5)]
    assert [one.factor for one in runs] == [0.9, 0.5]
    # 32 layers keep 240 x 4 x 16 floats each, and up to three more are on their way.
    layer = 240 * 4 * 16 * 4 / CAPACITY
    assert runs[1].peak == device.peak() / CAPACITY
    assert 32 * layer <= runs[1].peak <= 36 * layer
    assert device.allocated() < device.peak() / 100


def test_a_run_of_one_step_counts_too(store: Store) -> None:
    (recorded,) = run(store, SimulatedDevice(16 * CAPACITY), choose(KEY, SAMPLES, 1.0, ""))
    assert recorded.peak is not None


def test_running_out_is_recorded_before_the_exception_leaves(device: SimulatedDevice, store: Store) -> None:
    with pytest.raises(DeviceOutOfMemory):
        run(store, device, choose(HEAVY.key, 480, 0.6, ""), HEAVY)
    assert store.record(HEAVY.key, device.kind).runs == (Run(0.6, None),)


class Fails(pl.Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        raise ZeroDivisionError


def test_nothing_is_learnt_from_another_failure_or_an_unused_device(
    device: SimulatedDevice, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(KEY, 480, 0.3, "")
    with pytest.raises(ZeroDivisionError):
        run(store, device, choice, LIGHT, Fails())
    train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store, gauge_of(SimulatedDevice(CAPACITY))))
    assert store.read() == {}
    assert "nothing was allocated on sim:0; nothing is learned" in caplog.text
