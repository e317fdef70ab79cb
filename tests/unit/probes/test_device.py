"""``vram`` over devices that answer, that fail, and that get lost; and what NVML adds, there or not."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.judge.device_witness import check_with_driver
from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.probes.accelerators import find_accelerators
from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.device import Device, Vram
from pytest_leakcheck.probes.gpu_driver import driver_by_nvml

MIB = 1 << 20


class Fake(Device):
    """A device whose figures are set."""

    def __init__(self, name: str = "fake:0", kind: Kind = "simulated", **figures: Any) -> None:
        self.name, self.kind = name, kind
        self.figures: dict[str, Any] = {"allocated": 0, "reserved": None, "driver": None, "peak": None} | figures
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

    def reserved(self) -> Any:
        return self.figures["reserved"]

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
    assert vram.states() == ()
    assert vram.peak() is None
    # It does not come back.
    device.figures["allocated"] = 5
    assert vram.read() == 100


def test_the_peak_is_the_sum_of_marks_and_none_where_one_keeps_none() -> None:
    assert opened(Fake(peak=3), Fake(peak=4)).peak() == 7
    assert opened(Fake(peak=3), Fake()).peak() is None


def attest(verdict: Verdict, vram: Vram) -> Verdict:
    """The verdict, once the driver has been asked."""
    return check_with_driver(verdict, vram.states())


LEAK = Verdict("vram", "leak", slope=float(MIB), level=20 * MIB, iterations=20, reason="+1.0 MiB/iter")


@pytest.mark.parametrize(
    ("allocated", "reserved", "driver", "outcome"),
    [
        (21, 22, 522, "leak"),
        (21, 22, 500, "inconclusive"),
        # Nothing but the allocator's own word.
        (21, None, None, "leak"),
    ],
)
def test_growth_that_the_driver_does_not_confirm_is_inconclusive(
    allocated: int, reserved: int | None, driver: int | None, outcome: str
) -> None:
    device = Fake(allocated=MIB, reserved=reserved and 2 * MIB, driver=driver and 502 * MIB)
    vram = opened(device)
    vram.mark()
    device.figures |= {
        "allocated": allocated * MIB,
        "reserved": reserved and reserved * MIB,
        "driver": driver and driver * MIB,
    }
    verdict = attest(LEAK, vram)
    assert verdict.outcome == outcome
    assert verdict.reason.startswith("+1.0 MiB/iter")
    # What is free is given back before anybody is asked.
    assert device.settled == 2


def test_growth_that_the_driver_cannot_see_yet_is_red_by_the_allocator_alone() -> None:
    """A leak of 512 bytes would need days to fill the reserve of a large model: the driver never sees it."""
    device = Fake(allocated=MIB, reserved=100 * MIB, driver=600 * MIB)
    vram = opened(device)
    vram.mark()
    device.figures["allocated"] = 21 * MIB
    verdict = attest(LEAK, vram)
    assert verdict.outcome == "leak"
    assert "the driver cannot see it yet" in verdict.reason


def test_what_the_allocator_keeps_is_a_note_on_an_ok_and_no_growth() -> None:
    device = Fake(allocated=MIB, reserved=2 * MIB, driver=502 * MIB)
    vram = opened(device)
    vram.mark()
    device.figures |= {"reserved": 42 * MIB, "driver": 542 * MIB}
    verdict = attest(Verdict("vram", "ok", floor=512.0), vram)
    assert verdict.outcome == "ok"
    assert verdict.reason == "41.0 MiB of the 42.0 MiB reserved are free, 40.0 MiB more than at the start"


class Nvml:
    """As much of ``pynvml`` as is used; ``fails`` says where, ``processes`` who has what."""

    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_UNKNOWN = 999
    NVML_ERROR_UNINITIALIZED = 1

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, fails: str = "", processes: dict[int, int | None] | None = None) -> None:
        self.fails = fails
        self.processes = {os.getpid(): 7 * MIB} if processes is None else processes
        self.inits = 0

    def _call(self, name: str) -> None:
        if self.fails.partition(":")[0] == name:
            raise self.NVMLError(int(self.fails.partition(":")[2] or 3))

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
    view = driver_by_nvml(nvml, "GPU-1", of_device)
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
    view = driver_by_nvml(nvml, "GPU-1", of_device)
    assert (view.read(), view.note) == (60 * MIB, note)
    view.close()
    assert nvml.inits == 0


def test_nvml_that_goes_while_a_test_runs_is_a_witness_less_and_no_failure() -> None:
    nvml = Nvml()
    view = driver_by_nvml(nvml, "GPU-1", of_device)
    nvml.fails = f"processes:{Nvml.NVML_ERROR_GPU_IS_LOST}"
    assert view.read() is None
    nvml.fails = "shutdown"
    view.close()


def test_the_real_nvml_fails_in_words_where_there_is_no_driver() -> None:
    nvml = pytest.importorskip("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        view = driver_by_nvml(nvml, "GPU-1", of_device)
        assert view.read() == 60 * MIB
        assert view.note.startswith("and its free memory (NVML fails: ")
    else:
        nvml.nvmlShutdown()
        pytest.skip("there is a driver here")


def test_a_device_that_knows_no_ceiling_says_so() -> None:
    with pytest.raises(Unavailable, match="fake:0 cannot be limited"):
        Fake().limit(1)
