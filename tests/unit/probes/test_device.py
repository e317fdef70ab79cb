"""``vram`` over devices that answer, that fail, and that get lost; and what NVML adds, there or not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.probes.accelerators import DriverCount, TorchDevice, find_accelerators
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.device import Device, Vram

MIB = 1 << 20


class Fake(Device):
    """A device whose figures are set."""

    def __init__(self, name: str = "fake:0", kind: Kind = "simulated", **figures: Any) -> None:
        self.name, self.kind = name, kind
        self.figures: dict[str, Any] = {"allocated": 0, "driver": None, "peak": None} | figures
        self.open_now = False
        self.settled = 0

    def open(self) -> None:
        if isinstance(self.figures["allocated"], Unavailable):
            raise self.figures["allocated"]
        self.open_now = True

    def allocated(self) -> int:
        value = self.figures["allocated"]
        if isinstance(value, Exception):
            raise value
        return int(value)

    def driver(self) -> Any:
        return self.figures["driver"]

    def peak(self) -> Any:
        return self.figures["peak"]

    def settle(self) -> None:
        self.settled += 1

    def close(self) -> None:
        self.open_now = False


def opened(*devices: Device) -> Vram:
    vram = Vram(lambda: devices)
    vram.open()
    return vram


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let these be the libraries that are loaded."""

    def load(**libraries: Any) -> None:
        for name in ("torch", "tensorflow", "jax"):
            monkeypatch.delitem(sys.modules, name, raising=False)
            if name in libraries:
                monkeypatch.setitem(sys.modules, name, libraries[name])

    return load


def test_it_sums_its_devices_and_is_as_trustworthy_as_the_worst_of_them() -> None:
    first, second = Fake("a:0", "measured", allocated=3), Fake("a:1", "accounted", allocated=4)
    vram = opened(first, second)
    assert (vram.read(), vram.kind, vram.name) == (7, "accounted", "a:0, a:1")
    vram.close()
    assert not first.open_now
    assert not second.open_now


def test_without_a_device_it_is_unavailable_and_never_0(only: Callable[..., None]) -> None:
    only()
    with pytest.raises(NotInUse, match="no accelerator: none of torch, tensorflow and jax is loaded"):
        find_accelerators()
    with pytest.raises(NotInUse, match="no accelerator"):
        find_accelerators(accounted=True)
    only(torch=SimpleNamespace(__version__="2.13.0", accelerator=SimpleNamespace(is_available=lambda: False)))
    with pytest.raises(NotInUse, match=r"no accelerator: torch 2\.13\.0 sees none; --leakcheck-vram=accounted would"):
        find_accelerators()
    only(torch=SimpleNamespace(__version__="1.13.0"))
    with pytest.raises(NotInUse, match=r"torch 1\.13\.0 sees none"):
        find_accelerators()


def test_a_device_that_does_not_answer_is_unavailable_and_the_others_are_closed() -> None:
    good, bad = Fake(), Fake("bad:1", allocated=RuntimeError("CUDA error: out of order"))
    with pytest.raises(Unavailable, match=r"bad:1 does not answer: RuntimeError: CUDA error: out of order"):
        opened(good, bad)
    assert not good.open_now
    with pytest.raises(Unavailable, match="not here"):
        opened(Fake(allocated=Unavailable("not here")))


def test_a_device_that_is_lost_says_so_and_its_last_figure_stands() -> None:
    device = Fake(allocated=100)
    vram = opened(device)
    vram.mark()
    assert vram.read() == 100
    device.figures["allocated"] = RuntimeError("CUDA error: device lost\nmore")
    assert (vram.read(), vram.lost) == (100, "RuntimeError: CUDA error: device lost")
    assert vram.describe_growth() == ""
    assert vram.peak() is None
    # It does not come back.
    device.figures["allocated"] = 5
    assert vram.read() == 100


def test_the_peak_is_the_sum_of_marks_and_none_where_one_keeps_none() -> None:
    assert opened(Fake(peak=3), Fake(peak=4)).peak() == 7
    assert opened(Fake(peak=3), Fake()).peak() is None


@pytest.mark.parametrize(
    ("allocated", "driver", "shown"),
    [
        (21, 522, "fake:0 +20.0 MiB by the allocator, +20.0 MiB by the driver"),
        (21, 500, "fake:0 +20.0 MiB by the allocator, -2.0 MiB by the driver"),
        # Another library takes memory from the driver.
        (1, 542, "fake:0 +0 B by the allocator, +40.0 MiB by the driver"),
        (1, 502, ""),
        # The driver is not asked.
        (21, None, "fake:0 +20.0 MiB"),
    ],
)
def test_the_drivers_count_is_shown_beside_the_allocators(allocated: int, driver: int | None, shown: str) -> None:
    device, quiet = Fake(allocated=MIB, driver=driver and 502 * MIB), Fake("fake:1", allocated=MIB, driver=502 * MIB)
    vram = opened(device, quiet)
    vram.mark()
    device.figures |= {"allocated": allocated * MIB, "driver": driver and driver * MIB}
    quiet.figures["driver"] += 4096
    assert vram.describe_growth() == shown
    # What is free is given back before anybody is asked.
    assert device.settled == 2


class Nvml:
    """As much of ``pynvml`` as is used; ``fails`` says where, ``processes`` who has what."""

    class NVMLError(Exception):
        pass

    def __init__(self, fails: str = "", processes: dict[int, int | None] | None = None) -> None:
        self.fails = fails
        self.processes = {os.getpid(): 7 * MIB} if processes is None else processes
        self.inits = 0

    def _call(self, name: str) -> None:
        if self.fails == name:
            raise self.NVMLError("error 3")

    def nvmlInit(self) -> None:  # noqa: N802 - its own name, as those below
        self._call("init")
        self.inits += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._call("shutdown")
        self.inits -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self._call("handle")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, _handle: str) -> list[Any]:  # noqa: N802
        self._call("processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]


def of_device() -> tuple[int, int]:
    return 20 * MIB, 80 * MIB


def test_nvml_tells_this_process_apart_from_another_on_the_same_device() -> None:
    nvml = Nvml(processes={os.getpid(): 7 * MIB, 1: 50 * MIB})
    view = DriverCount(of_device, nvml, "GPU-1")
    assert (view.read(), view.capacity(), view.note) == (7 * MIB, 80 * MIB, "and NVML for this process")
    nvml.processes[1] = 60 * MIB
    assert view.read() == 7 * MIB
    view.close()
    assert nvml.inits == 0


@pytest.mark.parametrize(
    ("nvml", "note"),
    [
        (Nvml("init"), "and its free memory (NVML fails: error 3)"),
        (Nvml("handle"), "and its free memory (NVML fails: error 3)"),
        (Nvml("processes"), "and its free memory (NVML fails: error 3)"),
        (Nvml(processes={1: 50 * MIB}), "and its free memory (NVML does not know this process, as in a container)"),
        (
            Nvml(processes={os.getpid(): None}),
            "and its free memory (NVML does not know this process, as in a container)",
        ),
    ],
)
def test_where_nvml_is_no_use_the_devices_own_figures_are_taken_and_the_reason_is_said(nvml: Nvml, note: str) -> None:
    view = DriverCount(of_device, nvml, "GPU-1")
    assert (view.read(), view.note) == (60 * MIB, note)
    view.close()
    assert nvml.inits == 0


def test_nvml_that_goes_while_a_test_runs_is_a_count_less_and_no_failure() -> None:
    nvml = Nvml()
    view = DriverCount(of_device, nvml, "GPU-1")
    nvml.fails = "processes"
    assert view.read() is None
    nvml.fails = "shutdown"
    view.close()


class FakeTorch:
    """An accelerator as torch shows it: two devices, of which the first is in use."""

    __version__ = "2.13.0"

    def __init__(self, **changes: Any) -> None:
        self.allocated = {0: 10 * MIB, 1: 0}
        self.calls: list[str] = []

        def note(name: str) -> Callable[..., None]:
            return lambda *_arguments, **_keywords: self.calls.append(name)

        self.accelerator = SimpleNamespace(
            is_available=lambda: True,
            current_accelerator=lambda: SimpleNamespace(type="cuda"),
            device_count=lambda: 2,
            current_device_index=lambda: 0,
            memory_allocated=self.allocated.__getitem__,
            memory_reserved=self.allocated.__getitem__,
            max_memory_allocated=self.allocated.__getitem__,
            reset_peak_memory_stats=note("reset"),
            synchronize=note("synchronize"),
            empty_cache=note("empty_cache"),
            get_memory_info=lambda _index: (30 * MIB, 80 * MIB),
            **changes,
        )
        self.random = SimpleNamespace(fork_rng=lambda *_a, **_k: self._nothing("fork_rng"))

    def _nothing(self, name: str) -> Any:
        self.calls.append(name)
        return nullcontext()

    def no_grad(self) -> Any:
        return self._nothing("no_grad")

    def rand(self, *_shape: int, device: str) -> Any:
        self.calls.append(f"rand on {device}")

        class Matrix:
            def __matmul__(self, other: Any) -> Any:
                return self

        return Matrix()

    def get_device_module(self, _kind: str) -> Any:
        return SimpleNamespace(
            get_device_properties=lambda _index: SimpleNamespace(uuid="1"),
            set_per_process_memory_fraction=lambda share, _index: self.calls.append(f"fraction {share}"),
        )


def test_torchs_accelerator_is_warmed_where_it_is_used_and_left_alone_where_not(
    only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = FakeTorch()
    only(torch=torch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    vram = Vram(find_accelerators)
    vram.open()
    assert "rand on cuda:0" in torch.calls
    assert "rand on cuda:1" not in torch.calls
    assert torch.calls.index("fork_rng") < torch.calls.index("rand on cuda:0"), "the program's random numbers stay"
    assert (vram.read(), vram.kind, vram.capacity) == (10 * MIB, "measured", 160 * MIB)
    assert "cuda:0 by torch 2.13.0, and its free memory (NVML would count this process only" in vram.name
    vram.mark()
    torch.allocated[1] = 5 * MIB
    assert vram.read() == 15 * MIB
    assert vram.describe_growth() == "cuda:1 +5.0 MiB by the allocator, +0 B by the driver"
    assert torch.calls.count("empty_cache") == 4
    vram.close()


def test_the_allocators_statistics_and_blocks_are_read_where_torch_lists_them() -> None:
    torch = FakeTorch()
    used = {"allocated_bytes": {"all": {"current": 1536}}}
    segments = [
        {
            "device": 0,
            "address": 4096,
            "blocks": [
                {"size": 512, "state": "active_allocated"},
                {"size": 512, "state": "inactive"},
                {"size": 1024, "state": "active_allocated"},
                {"size": 2048, "state": "active_pending_free"},
            ],
        },
        {"device": 1, "address": 9000, "blocks": [{"size": 512, "state": "active_allocated"}]},
    ]
    module = SimpleNamespace(memory_stats_as_nested_dict=lambda index: {} if index else used)
    module.memory_snapshot = lambda: segments
    torch.get_device_module = lambda _kind: module  # type: ignore[method-assign]
    first = TorchDevice(torch, "cuda", 0)
    assert first.allocated() == 1536
    assert first.pieces() == {4096: 512, 5120: 1024}
    assert TorchDevice(torch, "cuda", 1).allocated() == 0, "not in use: there are no statistics yet"
    assert TorchDevice(FakeTorch(), "mps", 0).pieces() is None


def test_a_ceiling_is_a_share_of_the_device_and_can_be_taken_away() -> None:
    torch = FakeTorch()
    device = TorchDevice(torch, "cuda", 0)
    device.open()
    lift = device.limit(20 * MIB)
    assert torch.calls[-1] == "fraction 0.25"
    lift()
    assert torch.calls[-1] == "fraction 1.0"


def test_a_torch_that_does_not_count_on_this_device_is_unavailable() -> None:
    torch = FakeTorch()
    del torch.accelerator.memory_allocated
    with pytest.raises(Unavailable, match=r"torch 2\.13\.0 does not report the memory allocated on mps:0"):
        TorchDevice(torch, "mps", 0).open()


def tensorflow(gpus: int) -> Any:
    """As TensorFlow shows its GPUs: what is used now and was at most, by name."""
    used = {f"GPU:{at}": {"current": at + 1, "peak": at + 10} for at in range(gpus)}
    resets: list[str] = []
    experimental = SimpleNamespace(get_memory_info=used.__getitem__, reset_memory_stats=resets.append)
    config = SimpleNamespace(list_physical_devices=lambda _kind: [None] * gpus, experimental=experimental)
    return SimpleNamespace(__version__="2.21.0", config=config, resets=resets)


def jax(*platforms: str) -> Any:
    """As JAX shows its devices; on the CPU it tells nothing of memory."""
    stats = {"cpu": None, "gpu": {"bytes_in_use": 5, "bytes_limit": 100}, "tpu": None}
    devices = [
        SimpleNamespace(platform=name, id=at, memory_stats=lambda name=name: stats[name])
        for at, name in enumerate(platforms)
    ]
    arrays = [SimpleNamespace(nbytes=3), SimpleNamespace(nbytes=4)]
    return SimpleNamespace(__version__="0.10.2", local_devices=lambda: devices, live_arrays=lambda: arrays)


def test_tensorflows_gpus_are_summed_and_its_marks_are_set_back(only: Callable[..., None]) -> None:
    library = tensorflow(2)
    only(tensorflow=library)
    vram = Vram(find_accelerators)
    vram.open()
    assert (vram.read(), vram.peak(), vram.kind) == (3, 21, "measured")
    assert vram.name == "GPU:0 by TensorFlow 2.21.0, GPU:1 by TensorFlow 2.21.0"
    vram.reset_peak()
    assert library.resets == ["GPU:0", "GPU:1"]


def test_jaxs_accelerators_are_read_and_its_cpu_is_none(only: Callable[..., None]) -> None:
    only(jax=jax("cpu", "gpu"))
    vram = Vram(find_accelerators)
    vram.open()
    assert (vram.read(), vram.peak(), vram.capacity, vram.name) == (5, None, 100, "gpu:1 by JAX 0.10.2")
    only(jax=jax("cpu"))
    with pytest.raises(NotInUse, match=r"no accelerator: jax 0\.10\.2 sees none"):
        find_accelerators()
    only(jax=jax("tpu"))
    with pytest.raises(Unavailable, match=r"JAX 0\.10\.2 does not report the memory of tpu:0"):
        Vram(find_accelerators).open()


def test_without_a_device_what_lives_on_the_cpu_is_accounted_where_that_is_asked_for(only: Callable[..., None]) -> None:
    only(tensorflow=tensorflow(0), jax=jax("cpu"))
    with pytest.raises(NotInUse, match=r"tensorflow 2\.21\.0 and jax 0\.10\.2 see none"):
        find_accelerators()
    vram = Vram(lambda: find_accelerators(accounted=True))
    vram.open()
    assert (vram.read(), vram.kind) == (7, "accounted")
    assert vram.name == "live arrays of JAX 0.10.2 on the CPU, accounted"
    # With a device it changes nothing.
    only(tensorflow=tensorflow(1))
    assert [one.kind for one in find_accelerators(accounted=True)] == ["measured"]
    only(tensorflow=tensorflow(0))
    with pytest.raises(Unavailable, match=r"tensorflow on the CPU cannot be counted; .* those of torch and JAX"):
        find_accelerators(accounted=True)
