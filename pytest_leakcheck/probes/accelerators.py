"""Find accelerators of torch, TensorFlow and JAX where these are loaded; import none of them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pytest_leakcheck.probes.base import NotInUse, Unavailable
from pytest_leakcheck.probes.device import Device, Vram


def open_vram() -> Vram:
    """Return the instrument of ``vram``, which finds the accelerators when it is opened."""
    return Vram(find_accelerators)


def find_accelerators(*, accounted: bool = False) -> tuple[Device, ...]:
    """Return all devices that the loaded libraries can use; raise `NotInUse` if there is none.

    With ``accounted``, fall back to devices that sum live tensors on the CPU, or raise
    `Unavailable`.
    """
    libraries: dict[str, Any] = {
        name: sys.modules[name] for name in _FINDERS if name in sys.modules
    }
    found = tuple(
        device for name, library in libraries.items() for device in _FINDERS[name](library)
    )
    if found:
        return found
    if accounted and libraries:
        accounts = tuple(_accounts(libraries))
        if not accounts:
            raise Unavailable(
                f"live tensors of {' and '.join(libraries)} on the CPU cannot be counted; "
                "--leakcheck-vram=accounted counts those of torch and JAX"
            )
        return accounts
    raise NotInUse(_why_none(libraries, accounted=accounted))


def _why_none(libraries: dict[str, Any], *, accounted: bool) -> str:
    if not libraries:
        return "no accelerator: none of torch, tensorflow and jax is loaded by the end of warm-up"
    seen = " and ".join(
        f"{name} {getattr(library, '__version__', '')}".strip()
        for name, library in libraries.items()
    )
    verb = "see" if len(libraries) > 1 else "sees"
    countable = not accounted and not libraries.keys().isdisjoint(("torch", "jax"))
    advice = "; --leakcheck-vram=accounted would count live tensors on the CPU" if countable else ""
    return f"no accelerator: {seen} {verb} none{advice}"


class TorchDevice(Device):
    """One accelerator of torch, read from its caching allocator; exact, in steps of 512 bytes."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self.name = f"{kind}:{index}"
        self._torch, self._index = torch, index
        # Before torch 2.9, only the module of each device type has functions for its memory.
        general = hasattr(torch.accelerator, "memory_allocated")
        module = torch.get_device_module(kind)
        self._memory = torch.accelerator if general else module
        self._statistics = getattr(module, "memory_stats_as_nested_dict", None)
        self._list_segments = getattr(module, "memory_snapshot", None)
        self._driver: DriverCount | None = None

    def open(self) -> None:
        """Initialize a device in use, so that no test is charged for its first-use allocations."""
        torch = self._torch
        if not callable(getattr(self._memory, "memory_allocated", None)):
            raise Unavailable(
                f"torch {torch.__version__} does not report the memory allocated on {self.name}"
            )
        # On a device that is not in use, a context would take half a gigabyte.
        if self._is_used():
            with (
                torch.random.fork_rng([self._index], device_type=self.name.partition(":")[0]),
                torch.no_grad(),
            ):
                matrix = torch.rand(8, 8, device=self.name)
                matrix @ matrix
        torch.accelerator.synchronize(self._index)
        self._driver = find_driver(torch, self._index)

    def _is_used(self) -> bool:
        current: int = self._torch.accelerator.current_device_index()
        return self._index == current or bool(self._memory.memory_reserved(self._index))

    def allocated(self) -> int:
        if self._statistics is None:
            return int(self._memory.memory_allocated(self._index))
        # `memory_allocated` flattens and sorts all statistics to return this one, which takes ten
        # times as long. The statistics are empty until the device is in use.
        found = self._statistics(self._index)
        return int(found["allocated_bytes"]["all"]["current"]) if found else 0

    def pieces(self) -> Mapping[Hashable, int] | None:
        """Return each allocated block's size by address; None if this torch does not list them."""
        if self._list_segments is None:
            return None
        found: dict[Hashable, int] = {}
        for segment in self._list_segments():
            if segment["device"] == self._index:
                address = segment["address"]
                for block in segment["blocks"]:
                    if block["state"] == "active_allocated":
                        found[address] = block["size"]
                    address += block["size"]
        return found

    def driver(self) -> int | None:
        return self._driver.read() if self._driver is not None else None

    def capacity(self) -> int | None:
        return self._driver.capacity() if self._driver is not None else None

    def peak(self) -> int:
        return int(self._memory.max_memory_allocated(self._index))

    def reset_peak(self) -> None:
        self._memory.reset_peak_memory_stats(self._index)

    def settle(self) -> None:
        self._torch.accelerator.synchronize(self._index)
        self._memory.empty_cache()

    def limit(self, size: int) -> Callable[[], None]:
        module = self._torch.get_device_module(self.name.partition(":")[0])
        total = self.capacity()
        if total is None or not hasattr(module, "set_per_process_memory_fraction"):
            return super().limit(size)
        module.set_per_process_memory_fraction(min(1.0, size / total), self._index)
        return lambda: module.set_per_process_memory_fraction(1.0, self._index)

    def describe(self) -> str:
        return f"{self.name} by torch {self._torch.__version__}" + (
            f", {self._driver.note}" if self._driver else ""
        )

    def close(self) -> None:
        if self._driver is not None:
            self._driver.close()


class TensorflowDevice(Device):
    """One GPU of TensorFlow.

    TensorFlow takes nearly all device memory at once, so the driver's count does not show tensors.
    """

    def __init__(self, tensorflow: Any, name: str) -> None:
        self.name = name
        self._read = tensorflow.config.experimental.get_memory_info
        self._reset = tensorflow.config.experimental.reset_memory_stats
        self._version = tensorflow.__version__

    def allocated(self) -> int:
        return int(self._read(self.name)["current"])

    def peak(self) -> int:
        return int(self._read(self.name)["peak"])

    def reset_peak(self) -> None:
        self._reset(self.name)

    def describe(self) -> str:
        return f"{self.name} by TensorFlow {self._version}"


class JaxDevice(Device):
    """One accelerator of JAX, whose peak counter cannot be reset, so `peak` returns None."""

    def __init__(self, device: Any, version: str) -> None:
        self.name = f"{device.platform}:{device.id}"
        self._device, self._version = device, version

    def allocated(self) -> int:
        return int(self._stats()["bytes_in_use"])

    def capacity(self) -> int | None:
        limit: int | None = self._stats().get("bytes_limit")
        return limit

    def _stats(self) -> Any:
        stats = self._device.memory_stats()
        if stats is None:
            raise Unavailable(f"JAX {self._version} does not report the memory of {self.name}")
        return stats

    def describe(self) -> str:
        return f"{self.name} by JAX {self._version}"


class AccountedJax(Device):
    """Bytes of JAX's live arrays on the CPU."""

    name = "cpu:0"
    kind = "accounted"

    def __init__(self, jax: Any) -> None:
        self._jax = jax

    def allocated(self) -> int:
        return sum(array.nbytes for array in self._jax.live_arrays())

    def describe(self) -> str:
        return f"live arrays of JAX {self._jax.__version__} on the CPU, accounted"


def _accounts(libraries: Mapping[str, Any]) -> Iterator[Device]:
    """Yield a device that sums live CPU tensors, for each fully loaded library that allows it."""
    if hasattr(libraries.get("torch"), "Tensor"):
        from pytest_leakcheck.probes.torch_storages import StorageAccount

        yield StorageAccount()
    if hasattr(libraries.get("jax"), "live_arrays"):
        yield AccountedJax(libraries["jax"])


def _torch_devices(torch: Any) -> Iterator[Device]:
    accelerator = getattr(torch, "accelerator", None)
    # `torch.cuda` is not used, because on a build without CUDA its memory functions silently return
    # 0.
    if accelerator is None or not accelerator.is_available():
        return
    kind = accelerator.current_accelerator().type
    for index in range(accelerator.device_count()):
        yield TorchDevice(torch, kind, index)


def _tensorflow_devices(tensorflow: Any) -> Iterator[Device]:
    config = getattr(tensorflow, "config", None)
    # TensorFlow may be only partly imported, or be a stub.
    if config is None or not hasattr(config, "list_physical_devices"):
        return
    for at, _device in enumerate(config.list_physical_devices("GPU")):
        yield TensorflowDevice(tensorflow, f"GPU:{at}")


def _jax_devices(jax: Any) -> Iterator[Device]:
    devices = getattr(jax, "local_devices", None)
    for device in devices() if devices is not None else ():
        if device.platform != "cpu":
            yield JaxDevice(device, jax.__version__)


_FINDERS: Final[Mapping[str, Callable[[Any], Iterator[Device]]]] = {
    "torch": _torch_devices,
    "tensorflow": _tensorflow_devices,
    "jax": _jax_devices,
}


class DriverCount:
    """The driver's count of memory in use on one device; ``note`` is its source, for the report.

    It includes what other libraries (cuBLAS, NCCL) take. Resolution: one page, up to 2 MiB. Cost:
    up to 2 ms, so it is read only at the start and for a verdict. Fallback: the whole device, with
    other processes, if NVML is missing, fails, or does not know this process: it uses the host's
    process ids, which a container does not see.
    """

    def __init__(self, of_device: Callable[[], tuple[int, int]], nvml: Any, uuid: str) -> None:
        """Ask NVML for the device with this UUID, because it numbers devices unlike CUDA.

        `of_device` returns the free and the total bytes of the device; `nvml` is None if it is not
        installed.
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
        with suppress(self._nvml.NVMLError):
            return self._of_this_process()
        return None

    def capacity(self) -> int:
        return self._of_device()[1]

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _of_this_process(self) -> int | None:
        return memory_of(
            self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle), (os.getpid(),)
        )


def find_driver(torch: Any, index: int) -> DriverCount | None:
    """Return the driver's count for a torch device; None if torch does not report free memory."""
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
    with suppress(ImportError):
        # Imported by name because the package has no type information.
        return importlib.import_module("pynvml")
    return None


def memory_of(running: Iterable[Any], pids: Collection[int]) -> int | None:
    """Return the device memory of these processes, in bytes; None if NVML has no figure for any."""
    # NVML has no figure under Windows' own driver model (WDDM).
    known = [
        process.usedGpuMemory
        for process in running
        if process.pid in pids and process.usedGpuMemory is not None
    ]
    return sum(known) if known else None
