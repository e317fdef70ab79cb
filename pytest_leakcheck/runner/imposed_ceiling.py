"""Set the limits of a test's ceiling on this process, a subprocess for this test alone; child processes inherit them.

RLIMIT_NOFILE limits descriptors, RLIMIT_AS limits memory, and the allocator of a device limits the memory of the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pytest_leakcheck.config.budget import Ceiling
from pytest_leakcheck.model.resources import Exhausts, find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.memory import PAGE


class ImposedCeiling:
    """The limits of one test, from `impose` to `lift`; `missing` says why one cannot be set, by resource."""

    def __init__(self, ceiling: Ceiling) -> None:
        self._sizes = ceiling.sizes
        self._lifting = ExitStack()
        self.missing: dict[str, str] = {}

    def impose(self) -> None:
        """Set the limits of this process, before the first line of the test."""
        self._set("descriptors", partial(_set_soft_limit, "RLIMIT_NOFILE"))
        self._set("memory", _limit_memory)

    def impose_on(self, device: Vram | None) -> None:
        """Set the limit of a device, once it is known; None if there is no device."""
        self._set("device", partial(_limit_device, device))

    def lift(self) -> None:
        """Remove the limits, so that a test that has used up its memory can still be judged."""
        self._lifting.close()

    @property
    def in_force(self) -> dict[str, int]:
        """The limits that could be set, by resource."""
        return {name: size for name, size in self._sizes.items() if name not in self.missing}

    def _set(self, exhausts: Exhausts, limit: Callable[[int], Callable[[], None]]) -> None:
        for name, size in self._sizes.items():
            if find_resource(name).exhausts == exhausts:
                try:
                    self._lifting.callback(limit(size))
                except (Unavailable, OSError, ValueError) as error:
                    self.missing[name] = f"its ceiling cannot be set: {error}"


def _limit_device(device: Vram | None, size: int) -> Callable[[], None]:
    if device is None:
        raise Unavailable("there is no device to limit")
    return device.limit(size)


def _limit_memory(size: int) -> Callable[[], None]:
    pages = [int(number) for number in Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]]
    mapped, resident = (number * PAGE for number in pages)
    if size <= resident:
        has = format_amount(resident, "bytes")
        raise Unavailable(f"this process has {has} before the test starts, more than {format_amount(size, 'bytes')}")
    # Memory that is mapped but not resident (libraries, reserved ranges) does not count against the ceiling.
    return _set_soft_limit("RLIMIT_AS", mapped - resident + size)


def _set_soft_limit(name: str, size: int) -> Callable[[], None]:
    """Set a soft limit. Returns a function that restores the previous one."""
    try:
        import resource
    except ImportError:
        raise Unavailable("this system has no resource limits (RLIMIT)") from None
    number = getattr(resource, name)
    before = resource.getrlimit(number)
    resource.setrlimit(number, (size, before[1]))
    return lambda: resource.setrlimit(number, before)
