"""How much room is left: of memory, by cgroups and the machine; of devices, by their driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pytest_leakcheck.watch.follower import Devices, memory_room

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cgroup", "files", "room"),
    [
        ("0::/\n", {}, (10 * GIB, "memory of the machine")),
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
            {
                "memory/job/memory.limit_in_bytes": f"{2 * GIB}",
                "memory/job/memory.usage_in_bytes": f"{GIB}",
                "memory/job/memory.stat": "",
            },
            (GIB, "cgroup job"),
        ),
        (
            "0::/far\n",
            {"memory.max": f"{3 * GIB}", "memory.current": f"{4 * GIB}", "memory.stat": "anon 5\n"},
            (0, "cgroup cgroup"),
        ),
    ],
    ids=["none", "version 2, above", "version 1", "container"],
)
def test_room_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], room: tuple[int, str]
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 * GIB))
    for name, text in {"proc/7/cgroup": cgroup, **{f"cgroup/{name}": text for name, text in files.items()}}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert memory_room(7, tmp_path / "proc", tmp_path / "cgroup") == room


class NVMLError(Exception):
    pass


def test_no_room_is_told_where_the_machine_hides_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    assert memory_room(7, tmp_path / "proc", tmp_path / "cgroup") is None


def fake_nvml(*, lost: bool = False) -> SimpleNamespace:
    """Two devices; the first is used by process 7 and another, the second by the other alone."""
    other = SimpleNamespace(pid=8, usedGpuMemory=GIB)
    running = [[SimpleNamespace(pid=7, usedGpuMemory=2 * GIB), other], [other]]

    def memory(index: int) -> SimpleNamespace:
        if lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=5 * GIB + index, free=3 * GIB + index)

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=lambda index: running[index],
    )


def test_device_memory_is_that_of_the_processes() -> None:
    devices = Devices(fake_nvml())
    assert devices.read([7]) == {"vram:0": (2 * GIB, 3 * GIB)}
    assert devices.note == ""
    devices.close()
    assert devices.read([7]) == {}


def test_unknown_to_the_driver_whole_devices_are_told() -> None:
    devices = Devices(fake_nvml())
    assert devices.read([99]) == {"vram:0": (5 * GIB, 3 * GIB), "vram:1": (5 * GIB + 1, 3 * GIB + 1)}
    assert "counted for all processes" in devices.note


def test_a_device_that_is_lost_is_told() -> None:
    devices = Devices(fake_nvml(lost=True))
    assert devices.read([7]) == {}
    assert devices.note == "device 1 does not answer: GPU is lost"
