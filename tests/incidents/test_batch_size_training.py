"""Real training runs of Lightning with simulated memory: what the callback records, and what is learnt from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from leakcheck_incidents.batch_size.bench import quick
from leakcheck_incidents.batch_size.callback import PeakRecorder, is_out_of_memory
from leakcheck_incidents.batch_size.choice import Choice, choose
from leakcheck_incidents.batch_size.gauge import find_gauge, gauge_of
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store
from leakcheck_incidents.batch_size.training import (
    CAPACITY,
    HEAVY,
    LIGHT,
    SAMPLES,
    Configuration,
    Net,
    train,
    trainer,
)
from leakcheck_incidents.batch_size.tuning import tuned_batch_size
from leakcheck_incidents.synthetic.simulated_device import DeviceOutOfMemory, SimulatedDevice
from pytest_leakcheck.probes.base import Unavailable

pytestmark = [
    pytest.mark.laboratory,
    # Of Lightning 2.6 with a newer torch, and of its advice to use more workers.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
]
KEY = LIGHT.key
# What fits for three steps, of either configuration.
TUNED = 466


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


def test_the_device_that_comes_nearest_to_its_limit_counts_whichever_it_is(device: SimulatedDevice) -> None:
    other = SimulatedDevice(CAPACITY, name="sim:1")
    for address in [other.allocate(1 << 20), other.allocate(1 << 20)]:
        other.free(address)
    device.free(device.allocate(1 << 20))
    assert gauge_of(device, other).highest() == gauge_of(other, device).highest() == 0.5
    assert gauge_of(device, limit=2 << 20).highest() == 0.5


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


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), False),
        (MemoryError(), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_what_is_out_of_memory_of_a_device(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def test_without_an_accelerator_that_is_told() -> None:
    with pytest.raises(Unavailable, match=f"no accelerator: torch {torch.__version__} sees none$".replace("+", r"\+")):
        find_gauge()


def test_a_store_that_cannot_be_written_does_not_end_a_training(
    device: SimulatedDevice, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.path.write_text("foreign")
    choice = choose(KEY, 480, 0.3, "")
    with device.charging():
        train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store, gauge_of(device)))
    assert f"this training run of {KEY} is not recorded" in caplog.text


@pytest.mark.parametrize("configuration", [LIGHT, HEAVY], ids=["light", "heavy"])
def test_the_tuner_sees_three_steps_and_so_not_the_long_samples(
    device: SimulatedDevice, tmp_path: Path, configuration: Configuration
) -> None:
    model = Net(configuration)
    with device.charging():
        assert tuned_batch_size(trainer(tmp_path), model, init_val=227) == model.batch_size == TUNED


def test_the_tuner_ends_where_the_whole_data_set_does_not_fit(tmp_path: Path) -> None:
    """Lightning 2.6 asks the same size over and over there, so it is held below the data set's."""
    with SimulatedDevice(2 * CAPACITY).charging():
        assert 512 <= tuned_batch_size(trainer(tmp_path), Net(LIGHT), init_val=1024) < SAMPLES
