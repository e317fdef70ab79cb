"""Real training runs of Lightning with simulated memory: what the callback records, and what is learnt from it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import MLFlowLogger

from leakcheck_incidents.batch_size import fixed, leaky
from leakcheck_incidents.batch_size.bench import quick
from leakcheck_incidents.batch_size.callback import PeakRecorder
from leakcheck_incidents.batch_size.choice import DEFAULT, Choice, Settings, choose
from leakcheck_incidents.batch_size.exhausted import is_out_of_memory
from leakcheck_incidents.batch_size.gauge import Gauge, find_gauge, gauge_of
from leakcheck_incidents.batch_size.records import Record
from leakcheck_incidents.batch_size.runs import Run
from leakcheck_incidents.batch_size.store import Store
from leakcheck_incidents.batch_size.training import (
    CAPACITY,
    HEAVY,
    LIGHT,
    SAMPLES,
    Configuration,
    train,
)
from leakcheck_incidents.synthetic.simulated_device import DeviceOutOfMemory, SimulatedDevice
from pytest_leakcheck import Device
from pytest_leakcheck.probes.accelerators import TorchDevice

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
    return Store(tmp_path / "factors.json", patience=5)


def run(store: Store, gauge: Gauge, choice: Choice, configuration: Configuration = LIGHT, **more: Any) -> Record:
    """One training on the first device of a gauge, and what is known afterwards."""
    (device, *_others) = gauge.devices
    assert isinstance(device, SimulatedDevice)
    with device.charging():
        train(configuration, choice, store.path.parent, PeakRecorder(choice, store, gauge), **more)
    return store.record(choice.key, gauge.kind)


def test_a_run_is_recorded_with_its_highest_and_not_with_what_is_left_at_its_end(
    device: SimulatedDevice, store: Store
) -> None:
    record = run(store, gauge_of(device), choose(KEY, 480, 0.5, ""))
    (entry,) = record.entries
    assert (entry.run.oom, entry.batch_size, entry.run.factor) == (False, 240, 0.5)
    # 32 layers keep 240 x 4 x 16 floats each, and up to three more are on their way.
    layer = 240 * 4 * 16 * 4 / CAPACITY
    assert entry.run.peak is not None
    assert 32 * layer <= entry.run.peak <= 36 * layer
    assert device.allocated() < device.peak() / 100
    assert entry.run.peak == device.peak() / CAPACITY


def test_a_run_counts_its_own_peak_and_not_that_of_the_one_before(device: SimulatedDevice, store: Store) -> None:
    gauge = gauge_of(device)
    peaks = [run(store, gauge, choose(KEY, 480, factor, "")).entries[-1].run.peak for factor in (0.9, 0.3)]
    assert peaks[0] is not None
    assert peaks[1] is not None
    assert peaks[1] < 0.4 * peaks[0]


def test_a_run_of_one_step_counts_too(store: Store) -> None:
    choice = choose(KEY, SAMPLES, 1.0, "")
    record = run(store, gauge_of(SimulatedDevice(16 * CAPACITY)), choice)
    assert record.statistics.successful_runs == 1


def test_the_device_that_comes_nearest_to_its_limit_counts_whichever_it_is(
    device: SimulatedDevice, store: Store
) -> None:
    """Part of the memory is another device's, as where a model is spread over two."""
    other = SimulatedDevice(4 << 20, name="sim:1")

    class Spread(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            for address in [other.allocate(1 << 20), other.allocate(1 << 20)]:
                other.free(address)

    choice = choose(KEY, 480, 0.3, "")
    for gauge in (gauge_of(device, other), gauge_of(other, device)):
        with device.charging():
            train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store, gauge), Spread())
        assert store.record(KEY, gauge.kind).entries[-1].run.peak == 0.5
    assert device.peak() / CAPACITY < 0.4


def test_the_share_is_of_what_this_process_may_have() -> None:
    device = SimulatedDevice(1 << 30)
    device.free(device.allocate(6 << 20))
    assert gauge_of(device).highest() == 6 / 1024
    assert gauge_of(device, limit=8 << 20).highest() == 0.75


def test_running_out_is_recorded_before_the_exception_leaves(device: SimulatedDevice, store: Store) -> None:
    choice = choose(HEAVY.key, 480, 0.6, "")
    with pytest.raises(DeviceOutOfMemory):
        run(store, gauge_of(device), choice, HEAVY)
    (entry,) = store.record(HEAVY.key, "simulated").entries
    assert entry.run == Run(0.6, None, oom=True)
    assert entry.notes.startswith("CUDA out of memory (simulated). Tried to allocate")


class Fails(pl.Callback):
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def on_train_batch_end(self, *_: Any) -> None:
        raise self._error


def test_another_failure_is_not_recorded_and_told(
    device: SimulatedDevice, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(KEY, 480, 0.3, "")
    with device.charging(), pytest.raises(ZeroDivisionError):
        train(
            LIGHT, choice, store.path.parent, PeakRecorder(choice, store, gauge_of(device)), Fails(ZeroDivisionError())
        )
    assert store.read() == {}
    assert f"{KEY} was ended by ZeroDivisionError; nothing is learned from this training run" in caplog.text


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (torch.OutOfMemoryError("HIP out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (DeviceOutOfMemory("CUDA out of memory (simulated). Tried to allocate 1 B"), True),
        (chained(RuntimeError("in a worker"), torch.OutOfMemoryError("CUDA out of memory.")), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), False),
        (MemoryError(), False),
        (ValueError("CUDA out of memory"), False),
        (RuntimeError("shape mismatch"), False),
    ],
)
def test_what_is_out_of_memory_of_a_device(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def test_an_error_that_is_its_own_cause_ends() -> None:
    error = RuntimeError("a")
    error.__context__ = chained(RuntimeError("b"), error)
    assert not is_out_of_memory(error)


def test_without_an_accelerator_nothing_is_learnt_and_that_is_told(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(KEY, 480, 0.3, "")
    train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store))
    assert store.read() == {}
    assert f"no accelerator: torch {torch.__version__} sees none; nothing is learned" in caplog.text
    assert f"nothing is learned from this training run of {KEY}, which continues" in caplog.text


def test_a_device_that_nothing_was_done_on_is_told(
    device: SimulatedDevice, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose(KEY, 480, 0.3, "")
    train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store, gauge_of(device)))
    assert store.read() == {}
    assert "nothing was allocated on sim:0; nothing is learned" in caplog.text


def test_devices_are_found_opened_and_let_go_of(
    device: SimulatedDevice, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that there are; each by its type, so that two machines with the same share a factor."""
    seen: list[str] = []

    class Npu(SimulatedDevice):
        def open(self) -> None:
            seen.append(f"open {self.name}")

        def close(self) -> None:
            seen.append(f"close {self.name}")

    devices = [Npu(CAPACITY, name="npu:0"), Npu(CAPACITY, name="npu:1")]
    monkeypatch.setattr("leakcheck_incidents.batch_size.gauge.find_accelerators", lambda: devices)
    choice = choose(KEY, 480, 0.3, "")
    with devices[1].charging():
        train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store))
    assert seen == ["open npu:0", "open npu:1", "close npu:0", "close npu:1"]
    assert [name for _key, name in store.read()] == ["npu"]
    other = TorchDevice(torch, "cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"card {index}")
    monkeypatch.setattr(other, "open", lambda: None)
    monkeypatch.setattr("leakcheck_incidents.batch_size.gauge.find_accelerators", lambda: [other, device])
    assert find_gauge().kind == "card 0 + sim"


def test_a_device_without_a_mark_is_told(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    class Markless(Device):
        def capacity(self) -> int:
            return 1

    choice = choose(KEY, 480, 0.3, "")
    train(LIGHT, choice, store.path.parent, PeakRecorder(choice, store, gauge_of(Markless())))
    assert store.read() == {}
    assert "does not report its peak; nothing is learned" in caplog.text


@pytest.mark.parametrize("full", [False, True])
def test_a_store_that_cannot_be_written_does_not_end_a_training(
    device: SimulatedDevice, store: Store, caplog: pytest.LogCaptureFixture, full: bool
) -> None:
    """Nor does it take the place of what the training itself fails with."""
    choice = choose(HEAVY.key, 480, 0.6 if full else 0.3, "")
    broken = Store(store.path.parent / "none" / "factors.json")
    (store.path.parent / "none").write_text("a file")
    recorder = PeakRecorder(choice, broken, gauge_of(device))
    with device.charging():
        if full:
            with pytest.raises(DeviceOutOfMemory):
                train(HEAVY, choice, store.path.parent, recorder)
        else:
            train(HEAVY, choice, store.path.parent, recorder)
    assert f"this training run of {HEAVY.key} is not recorded" in caplog.text


def test_a_logger_that_fails_neither(device: SimulatedDevice, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(pl.loggers.CSVLogger):
        def log_metrics(self, metrics: Any, step: int | None = None) -> None:  # noqa: ARG002 - of the interface
            raise ConnectionError("no server")

    run(store, gauge_of(device), choose(KEY, 480, 0.3, ""), logger=Broken(store.path.parent))
    assert "Broken did not accept the batch-size metrics: no server" in caplog.text
    assert len(store.record(KEY, "simulated").entries) == 1


def test_metrics_reach_a_local_store_of_mlflow(
    device: SimulatedDevice, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Files are in maintenance mode; the other local store of MLflow takes three packages more.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    for factor, ran_out in ((0.3, 0.0), (0.6, 1.0)):
        logger = MLFlowLogger("factors", tracking_uri=uri)
        with suppress(DeviceOutOfMemory):
            run(store, gauge_of(device), choose(HEAVY.key, 480, factor, ""), HEAVY, logger=logger)
        found = logger.experiment.get_run(logger.run_id)
        metrics = found.data.metrics
        assert metrics["batch_size/out_of_memory"] == ran_out
        assert metrics["batch_size/factor"] == factor
        assert metrics["batch_size/samples"] == 480 * factor
        assert found.info.status == ("FAILED" if ran_out else "FINISHED")
    assert (metrics["batch_size/num_runs"], metrics["batch_size/successful_runs"]) == (2, 1)
    assert metrics["batch_size/next_factor"] == store.record(HEAVY.key, "simulated").proposal.factor
    assert 0.55 < metrics["batch_size/average_peak"] == metrics["batch_size/max_peak"] < 0.65
    assert "batch_size/peak" not in metrics


def course(arm: Any, configuration: Configuration, store: Store, runs: int, settings: Settings = DEFAULT) -> list[Run]:
    device = SimulatedDevice(CAPACITY)
    gauge = gauge_of(device)
    for _ in range(runs):
        choice = arm.batch_size(store, configuration.key, gauge.kind, 480, settings)
        with suppress(DeviceOutOfMemory):
            run(store, gauge, choice, configuration)
        gc.collect()
    return [entry.run for entry in store.record(configuration.key, gauge.kind).entries]


@pytest.mark.parametrize("configuration", [LIGHT, HEAVY], ids=["light", "heavy"])
def test_learnt_in_seven_runs(store: Store, configuration: Configuration) -> None:
    runs = course(fixed, configuration, store, 7)
    assert runs[-1].on_target
    assert runs[-2].on_target
    assert sum(one.oom for one in runs) <= 1
    assert runs[0].oom is (configuration is HEAVY)


def test_the_fixed_factor_runs_out_on_the_heavy_configuration_and_leaves_two_fifths_of_the_light_one_idle(
    store: Store,
) -> None:
    assert all(one.oom for one in course(leaky, HEAVY, store, 3))
    light = course(leaky, LIGHT, store, 3)
    assert all(one.peak is not None and 0.55 < one.peak < 0.65 for one in light)


def test_a_user_may_fix_the_factor_and_what_is_recorded_changes_nothing(store: Store) -> None:
    runs = course(fixed, LIGHT, store, 2, Settings(use_adaptive_batch_size_factor=False, safety_factor=0.25))
    assert [one.factor for one in runs] == [0.25, 0.25]
    choice = fixed.batch_size(store, KEY, "simulated", 480, Settings(use_adaptive_batch_size_factor=False))
    assert (choice.batch_size, choice.why) == (288, "fixed")
    # What was recorded meanwhile is there for the day when it is switched on.
    assert fixed.batch_size(store, KEY, "simulated", 480).batch_size > 120


def test_what_outlives_the_charging_is_given_back_when_it_goes(device: SimulatedDevice) -> None:
    """By the count of references, and by the collector: a trainer and its model are a cycle."""

    class Cyclic:
        def __init__(self) -> None:
            self.me, self.tensor = self, torch.zeros(1000)

    with device.charging():
        kept, cyclic = torch.zeros(1000), Cyclic()
    assert device.allocated() == 2 * 4096
    del kept
    assert device.allocated() == 4096
    del cyclic
    gc.collect()
    assert device.allocated() == 0
