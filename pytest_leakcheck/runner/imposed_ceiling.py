"""Impose a ceiling on this process, and lift it: RLIMIT_NOFILE, RLIMIT_AS or a cgroup, and the allocator of a device.

Children inherit the limits of their parent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

from pytest_leakcheck.config.ceiling import Ceiling
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.cgroups import MemoryGroup
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.memory import PAGE


@dataclass(frozen=True, slots=True)
class _Limit:
    """One limit: how it is set, and how it is taken away."""

    set_it: Callable[[], Callable[[], None]]
    lifts: list[Callable[[], None]]

    def impose(self) -> None:
        self.lifts.append(self.set_it())

    def lift(self) -> None:
        while self.lifts:
            self.lifts.pop()()


class ImposedCeiling:
    """The limits in force. `impose` before the test's first line, `lift` in any case.

    Attributes:
        missing: Why a limit could not be set, by resource.
        group: The folder of the cgroup that was made; None for none.
    """

    def __init__(self, ceiling: Ceiling) -> None:
        self._ceiling = ceiling
        self._limits: list[_Limit] = []
        self.missing: dict[str, str] = {}
        self.group: Path | None = None

    def impose(self) -> None:
        """Limit what is this process's own; devices are limited when they are known."""
        for name, size in sorted(self._ceiling.sizes.items()):
            if find_resource(name).exhausts == "descriptors":
                self._impose(name, partial(_limit, "RLIMIT_NOFILE", size))
            elif find_resource(name).exhausts == "memory":
                self._try(name, partial(self._limit_memory, name), size)

    def impose_on(self, device: Vram | None) -> None:
        """Limit the memory of devices, where a ceiling of it is wanted."""
        for name, size in self._ceiling.sizes.items():
            if find_resource(name).exhausts != "device":
                continue
            if device is None:
                self.missing[name] = "there is no device to set a ceiling for"
            else:
                self._impose(name, partial(device.limit, size))

    def lift(self) -> None:
        """Take them away, for a while or for good."""
        for limit in self._limits:
            limit.lift()

    def resume(self) -> None:
        """Set them again as they were."""
        for limit in self._limits:
            limit.impose()

    def _impose(self, name: str, set_it: Callable[[], Callable[[], None]]) -> None:
        limit = _Limit(set_it, [])
        self._try(name, lambda _size: limit.impose(), 0)
        self._limits.append(limit)

    def _try(self, name: str, impose: Callable[[int], None], size: int) -> None:
        try:
            impose(size)
        except (Unavailable, OSError, ValueError) as error:
            self.missing[name] = f"its ceiling cannot be set: {error}"

    def _limit_memory(self, name: str, size: int) -> None:
        if self._ceiling.means == "cgroup":
            group = MemoryGroup.make(size)
            self.group = group.path
            # In it this process stays until it ends: what it has by then cannot be charged to another.
            group.join()
            return
        pages = [int(number) for number in Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]]
        mapped, resident = (number * PAGE for number in pages)
        if size <= resident:
            has = format_amount(resident, "bytes")
            raise Unavailable(
                f"this process has {has} before the test begins, more than {format_amount(size, 'bytes')}"
            )
        # What is mapped and not resident (libraries, reserved ranges) is not what the ceiling is about.
        room = mapped - resident + size
        self._impose(name, partial(_limit, "RLIMIT_AS", room))


def _limit(name: str, size: int) -> Callable[[], None]:
    """Set a soft limit. Returns what sets it back."""
    resource = _resource()
    number = getattr(resource, name)
    before = resource.getrlimit(number)
    resource.setrlimit(number, (size, before[1]))
    return lambda: resource.setrlimit(number, before)


def _resource() -> ModuleType:
    try:
        import resource
    except ImportError:
        raise Unavailable("this system has no resource limits (RLIMIT)") from None
    return resource
