"""How much room is left: of memory, by cgroups and the machine; of devices, by their driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pytest_leakcheck.watch.gpu import Devices
from pytest_leakcheck.watch.process_limits import memory_room

GIB = 1 << 30


def fake_proc(folder: Path, cgroup: str, files: dict[str, str]) -> None:
    (folder / "proc" / "7").mkdir(parents=True)
    (folder / "proc" / "7" / "cgroup").write_text(cgroup, encoding="utf-8")
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("cgroup", "files", "room"),
    [
        ("0::/\n", {}, (10 * GIB, "memory of the machine")),
        ("0::/job\n", {"job/memory.max": "max", "job/memory.current": "5"}, (10 * GIB, "memory of the machine")),
        (
            "0::/job/rank\n",
            {
                "job/memory.max": f"{4 * GIB}",
                "job/memory.current": f"{3 * GIB}",
                "job/memory.stat": f"inactive_file {GIB}\n",
            },
            (2 * GIB, "cgroup job"),
        ),
        (
            "4:memory:/job\n0::/\n",
            {"memory/job/memory.limit_in_bytes": f"{2 * GIB}", "memory/job/memory.usage_in_bytes": f"{GIB}"},
            (GIB, "cgroup job"),
        ),
        (
            "4:memory:/job\n",
            {"memory/job/memory.limit_in_bytes": f"{(1 << 63) - 4096}", "memory/job/memory.usage_in_bytes": "1"},
            (10 * GIB, "memory of the machine"),
        ),
        ("0::/far\n", {"memory.max": f"{3 * GIB}", "memory.current": f"{4 * GIB}"}, (0, "cgroup cgroup")),
    ],
    ids=["none", "unlimited", "version 2, above", "version 1", "version 1, unlimited", "container"],
)
def test_room_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], room: tuple[int, str]
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))
    fake_proc(tmp_path, cgroup, files)
    assert memory_room(7, tmp_path / "proc", tmp_path / "cgroup") == room


class FakeNvml:
    """Two devices; the first is used by process 7 and another, the second by the other alone."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost
        self.ended = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.ended += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(used=5 * GIB + handle, free=3 * GIB + handle)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        other = SimpleNamespace(pid=8, usedGpuMemory=GIB)
        return [other] if handle else [SimpleNamespace(pid=7, usedGpuMemory=2 * GIB), other]


def test_device_memory_is_that_of_the_processes() -> None:
    nvml = FakeNvml()
    devices = Devices(nvml)
    assert devices.read([7]) == {"vram:0": (2 * GIB, 3 * GIB)}
    assert devices.note == ""
    devices.close()
    devices.close()
    assert nvml.ended == 1


def test_unknown_to_the_driver_whole_devices_are_told() -> None:
    devices = Devices(FakeNvml())
    assert devices.read([99]) == {"vram:0": (5 * GIB, 3 * GIB), "vram:1": (5 * GIB + 1, 3 * GIB + 1)}
    assert "counted for all processes" in devices.note


def test_a_device_that_is_lost_is_told() -> None:
    devices = Devices(FakeNvml(lost=True))
    assert devices.read([7]) == {}
    assert devices.note == "device 1 does not answer: GPU is lost"
