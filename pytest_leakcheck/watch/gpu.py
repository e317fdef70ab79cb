"""Read the memory of NVIDIA devices that the watched processes use."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pytest_leakcheck.probes.gpu_driver import load_nvml, memory_of


class Devices:
    """The memory that the driver has allocated on each device; `note` says what could not be read or attributed.

    Resolution: up to 2 MiB. Cost: up to 2 ms per device. The driver counts by the PIDs of the host, which a container
    does not see. If the driver does not know the processes, the memory of whole devices is read.
    """

    def __init__(self, nvml: Any = None) -> None:
        self.note = ""
        self._handles: list[Any] = []
        self._nvml = nvml or load_nvml()
        if self._nvml is None:
            # `note` stays empty, because most machines without `pynvml` have no NVIDIA device.
            return
        try:
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except self._nvml.NVMLError:
            self._handles = []

    def read(self, pids: Collection[int]) -> dict[str, tuple[int, int]]:
        """Return used and free bytes by device (``vram:0``): used by these PIDs, or by all if the driver knows none."""
        own: dict[str, tuple[int, int]] = {}
        whole: dict[str, tuple[int, int]] = {}
        for index, handle in enumerate(self._handles):
            name = f"vram:{index}"
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._nvml.NVMLError as error:
                self.note = f"device {index} does not answer: {error}"
                continue
            used = memory_of(running, pids)
            if used is not None:
                own[name] = (used, int(memory.free))
            if running:
                whole[name] = (int(memory.used), int(memory.free))
        if whole and not own:
            self.note = "device memory is counted for all processes: the driver cannot identify the watched ones"
        return own or whole

    def close(self) -> None:
        if self._handles:
            self._handles = []
            self._nvml.nvmlShutdown()
