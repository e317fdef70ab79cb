"""``vram`` over devices that answer, that fail, and that get lost; and what NVML adds, there or not."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.probes.accelerators import DriverCount, find_accelerators
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


def test_it_sums_its_devices_and_is_as_trustworthy_as_the_worst_of_them() -> None:
    first, second = Fake("a:0", "measured", allocated=3), Fake("a:1", "accounted", allocated=4)
    vram = opened(first, second)
    assert (vram.read(), vram.kind, vram.name) == (7, "accounted", "a:0, a:1")
    vram.close()
    assert not first.open_now
    assert not second.open_now


def test_without_a_device_it_is_unavailable_and_never_0(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "tensorflow", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(NotInUse, match="no accelerator: none of torch, tensorflow and jax is loaded"):
        find_accelerators()
    with pytest.raises(NotInUse, match="no accelerator"):
        find_accelerators(accounted=True)
    none = SimpleNamespace(__version__="2.13.0", accelerator=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", none)
    with pytest.raises(NotInUse, match=r"no accelerator: torch 2\.13\.0 sees none; --leakcheck-vram=accounted would"):
        find_accelerators()
    old = SimpleNamespace(__version__="1.13.0")
    monkeypatch.setitem(sys.modules, "torch", old)
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
