"""Read the driver's count of device memory, by NVML (NVIDIA's management library) or of the whole device."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any


class DriverCount:
    """The driver's count of the memory in use on one device, with its source as a ``note`` for the report.

    It includes what other libraries (cuBLAS, NCCL) take. Resolution: one page, up to 2 MiB. Cost: up to 2 ms, so it is
    read only at the start and for a verdict. Fallback: the whole device, with other processes, if NVML is missing,
    fails, or does not know this process: it uses the host's process ids, which a container does not see.
    """

    def __init__(self, of_device: Callable[[], tuple[int, int]], nvml: Any, uuid: str) -> None:
        """Ask NVML for the device with this UUID, because it numbers devices unlike CUDA.

        `of_device` returns the free and the total bytes of the device; `nvml` is None if it is not installed.
        """
        self._of_device = of_device
        self._nvml: Any = None
        self._handle: Any = None
        why_not = self._open(nvml, uuid)
        if why_not:
            self._handle = None
        self.note = f"and its free memory ({why_not})" if why_not else "and NVML for this process"

    def _open(self, nvml: Any, uuid: str) -> str:
        """Return why NVML cannot count this process; empty if it can."""
        if nvml is None:
            return "NVML would count this process only: pip install 'pytest-leakcheck[vram]'"
        try:
            nvml.nvmlInit()
            self._nvml = nvml
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            known = self._of_this_process() is not None
        except nvml.NVMLError as error:
            return f"NVML fails: {error}"
        return "" if known else "NVML does not know this process, as in a container"

    def read(self) -> int | None:
        """Return the bytes in use; None if NVML stops reporting this process."""
        if self._handle is None:
            free, total = self._of_device()
            return total - free
        with contextlib.suppress(self._nvml.NVMLError):
            return self._of_this_process()
        return None

    def capacity(self) -> int:
        return self._of_device()[1]

    def close(self) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _of_this_process(self) -> int | None:
        return memory_of(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle), (os.getpid(),))


def find_driver(torch: Any, index: int) -> DriverCount | None:
    """Return the driver's count for a torch device; None if this torch does not report the free memory."""
    accelerator = torch.accelerator
    # Before torch 2.9, only the module of each device type reports the free memory.
    module = torch.get_device_module(accelerator.current_accelerator().type)
    free = getattr(accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    if free is None:
        return None
    uuid = getattr(module.get_device_properties(index), "uuid", None)
    return DriverCount(lambda: free(index), load_nvml(), f"GPU-{uuid}")


def load_nvml() -> Any:
    """Import ``pynvml``; None if it is not installed."""
    with contextlib.suppress(ImportError):
        # Imported by name because the package has no type information.
        return importlib.import_module("pynvml")
    return None


def memory_of(running: Iterable[Any], pids: Collection[int]) -> int | None:
    """Return the bytes of device memory that these processes use; None if NVML has no figure for any of them."""
    # NVML has no figure under Windows' own driver model (WDDM).
    known = [one.usedGpuMemory for one in running if one.pid in pids and one.usedGpuMemory is not None]
    return sum(known) if known else None
