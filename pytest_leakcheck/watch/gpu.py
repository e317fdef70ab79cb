"""Memory of NVIDIA devices, as the driver counts it for the processes that are watched."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pytest_leakcheck.probes.gpu_driver import load_nvml, memory_of


class Devices:
    """What the driver has given out on each device.

    Resolution: up to 2 MiB. Cost: up to 2 ms per device. Where the driver does not know the processes (it counts by the pids of
    the host, which a container does not see), the whole device is taken, with a word.

    Attributes:
        note: Why there is nothing to read, or whose memory is read; empty where there is nothing to say.
    """

    def __init__(self, nvml: Any = None) -> None:
        """Args: nvml: The module ``pynvml``; by default it is looked for."""
        self.note = ""
        self._handles: list[Any] = []
        self._nvml = nvml or load_nvml()
        if self._nvml is None:
            # Most machines that lack it have no such device; nothing to tell.
            return
        try:
            self._nvml.nvmlInit()
            self._handles = [
                self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self._nvml.nvmlDeviceGetCount())
            ]
        except self._nvml.NVMLError:
            self._handles = []

    def read(self, pids: Collection[int]) -> dict[str, tuple[int, int]]:
        """Used and free bytes by name (``vram:0``), of devices that these processes use.

        Where the driver knows none of them on any device, of all devices that are in use at all.
        """
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
            self.note = "device memory is that of all processes: the driver does not know those that are watched"
        return own or whole

    def close(self) -> None:
        if self._handles:
            self._handles = []
            self._nvml.nvmlShutdown()
