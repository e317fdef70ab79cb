"""Read the driver's count of device memory, by NVML (NVIDIA's management library) or of the whole device."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any


class ProcessMemory:
    """The driver's count of the memory in use on one device, with its source as a ``note`` for the report.

    Resolution: one page, up to 2 MiB. Cost: up to 2 ms, so the plugin reads it only at the start and to check a
    suspicion. Fallback: the whole device, with other processes, if NVML is missing, fails, or does not know this
    process: it uses the host's process ids, which a container does not see.
    """

    def __init__(
        self, of_device: Callable[[], tuple[int, int]], of_process: Callable[[], int | None] | None, why_not: str = ""
    ) -> None:
        """Store the sources: free and total bytes of the device, and bytes of this process (None: cannot be read)."""
        self._of_device, self._of_process = of_device, of_process
        self.note = "and NVML for this process" if of_process is not None else f"and its free memory{why_not}"
        self._closing: Callable[[], None] = lambda: None

    def read(self) -> int | None:
        """Return the bytes in use; None if NVML stops reporting this process."""
        if self._of_process is not None:
            return self._of_process()
        free, total = self._of_device()
        return total - free

    def capacity(self) -> int:
        return self._of_device()[1]

    def close_by(self, closing: Callable[[], None]) -> None:
        self._closing = closing

    def close(self) -> None:
        self._closing()


def find_driver(torch: Any, index: int) -> ProcessMemory | None:
    """Return the best source of the driver's count of memory in use on a torch device; None if there is none."""
    accelerator = torch.accelerator
    # Before torch 2.9, only the module of each device type reports the free memory.
    module = torch.get_device_module(accelerator.current_accelerator().type)
    free = getattr(accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    if free is None:
        return None
    nvml = load_nvml()
    if nvml is None:
        why_not = " (NVML would count this process only: pip install 'pytest-leakcheck[vram]')"
        return ProcessMemory(lambda: free(index), None, why_not)
    uuid = getattr(module.get_device_properties(index), "uuid", None)
    return driver_by_nvml(nvml, f"GPU-{uuid}", lambda: free(index))


def load_nvml() -> Any:
    """Import ``pynvml``; None if it is not installed."""
    with contextlib.suppress(ImportError):
        # Imported by name because the package has no type information.
        return importlib.import_module("pynvml")
    return None


def driver_by_nvml(nvml: Any, uuid: str, of_device: Callable[[], tuple[int, int]]) -> ProcessMemory:
    """Return a source that reads NVML (by UUID, because it numbers devices unlike CUDA), or else ``of_device``."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return ProcessMemory(of_device, None, f" (NVML fails: {error})")
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if _bytes_of_this_process(nvml, handle) is None:
            view = ProcessMemory(of_device, None, " (NVML does not know this process, as in a container)")
        else:
            view = ProcessMemory(of_device, lambda: _bytes_of_this_process(nvml, handle))
    except nvml.NVMLError as error:
        view = ProcessMemory(of_device, None, f" (NVML fails: {error})")

    def shut_down() -> None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    view.close_by(shut_down)
    return view


def _bytes_of_this_process(nvml: Any, handle: Any) -> int | None:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        # The device or NVML may fail while a test runs; then this check is skipped and the test does not fail.
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN, nvml.NVML_ERROR_UNINITIALIZED):
            return None
        raise
    return memory_of(running, (os.getpid(),))


def memory_of(running: Iterable[Any], pids: Collection[int]) -> int | None:
    """Return the bytes of device memory that these processes use; None if NVML has no figure for any of them."""
    # NVML has no figure under Windows' own driver model (WDDM).
    known = [one.usedGpuMemory for one in running if one.pid in pids and one.usedGpuMemory is not None]
    return sum(known) if known else None
