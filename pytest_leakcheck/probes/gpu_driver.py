"""What the driver counts of a device: by NVML for this process alone, else by the device's own figures for all of them."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any


class ProcessMemory:
    """The driver's count for one device.

    Resolution: a page, up to 2 MiB. Cost: up to 2 ms, so it is asked at the start and when something is suspected. Where NVML
    is not there, fails, or does not know this process (it counts by the pids of the host, which a container does not see), the
    free memory of the device is taken, in which other processes have a share.

    Attributes:
        note: Whom it asks, for the report.
    """

    def __init__(
        self, of_device: Callable[[], tuple[int, int]], of_process: Callable[[], int | None] | None, why_not: str = ""
    ) -> None:
        """
        Args:
            of_device: Free and all bytes of the device.
            of_process: Bytes of this process; None where that cannot be asked.
            why_not: The reason for that.
        """
        self._of_device, self._of_process = of_device, of_process
        self.note = "and NVML for this process" if of_process is not None else f"and its free memory{why_not}"
        self._closing: Callable[[], None] = lambda: None

    def read(self) -> int | None:
        """Bytes; None where the driver does not answer any more."""
        if self._of_process is not None:
            return self._of_process()
        free, total = self._of_device()
        return total - free

    def capacity(self) -> int:
        """All bytes of the device."""
        return self._of_device()[1]

    def close_by(self, closing: Callable[[], None]) -> None:
        """Call this in the end."""
        self._closing = closing

    def close(self) -> None:
        self._closing()


def find_driver(torch: Any, index: int) -> ProcessMemory | None:
    """The best view there is of one of torch's devices; None where the driver tells nothing at all."""
    accelerator = torch.accelerator
    # Before torch 2.9 each kind of device has its own.
    module = torch.get_device_module(accelerator.current_accelerator().type)
    free = getattr(accelerator, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    if free is None:
        return None
    nvml = load_nvml()
    if nvml is None:
        why_not = " (NVML would tell this process apart: pip install 'pytest-leakcheck[vram]')"
        return ProcessMemory(lambda: free(index), None, why_not)
    uuid = getattr(module.get_device_properties(index), "uuid", None)
    return driver_by_nvml(nvml, f"GPU-{uuid}", lambda: free(index))


def load_nvml() -> Any:
    """Import ``pynvml``; None where it is not installed."""
    with contextlib.suppress(ImportError):
        # By name: the package has no types.
        return importlib.import_module("pynvml")
    return None


def driver_by_nvml(nvml: Any, uuid: str, of_device: Callable[[], tuple[int, int]]) -> ProcessMemory:
    """The view of NVML, where it answers and knows this process.

    Args:
        nvml: The module ``pynvml``.
        uuid: Of the device, since the numbers of NVML are not those of CUDA_VISIBLE_DEVICES.
        of_device: What is asked otherwise: free and all bytes.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return ProcessMemory(of_device, None, f" (NVML fails: {error})")
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        if _of_this_process(nvml, handle) is None:
            view = ProcessMemory(of_device, None, " (NVML does not know this process, as in a container)")
        else:
            view = ProcessMemory(of_device, lambda: _of_this_process(nvml, handle))
    except nvml.NVMLError as error:
        view = ProcessMemory(of_device, None, f" (NVML fails: {error})")

    def shut_down() -> None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    view.close_by(shut_down)
    return view


def _of_this_process(nvml: Any, handle: Any) -> int | None:
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError as error:
        # It may go while a test runs, with the device or without: then there is one witness less, and no failure.
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNKNOWN, nvml.NVML_ERROR_UNINITIALIZED):
            return None
        raise
    return memory_of(running, (os.getpid(),))


def memory_of(running: Iterable[Any], pids: Collection[int]) -> int | None:
    """Sum what NVML counts for these processes; None where it knows none of them."""
    # Under Windows' own driver model the figure itself is missing.
    known = [one.usedGpuMemory for one in running if one.pid in pids and one.usedGpuMemory is not None]
    return sum(known) if known else None
