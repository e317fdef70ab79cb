"""Impose a ceiling, the set of limits that one test runs under, on this process, and lift it.

RLIMIT_NOFILE limits descriptors, RLIMIT_AS or a cgroup limits memory, and the allocator of a device limits the memory
of the device. Child processes inherit the limits on descriptors and memory.
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
    """One limit: `set_it` imposes it and returns a function that lifts it; `lifts` is empty while it is not imposed."""

    set_it: Callable[[], Callable[[], None]]
    lifts: list[Callable[[], None]]

    def impose(self) -> None:
        if not self.lifts:
            self.lifts.append(self.set_it())

    def lift(self) -> None:
        while self.lifts:
            self.lifts.pop()()


class ImposedCeiling:
    """The limits of one test; call `impose` before its first line runs, and `lift` however it ends.

    `missing` says why a limit could not be set, by resource; `group` is the folder of the cgroup, if one was created.
    """

    def __init__(self, ceiling: Ceiling) -> None:
        self._ceiling = ceiling
        self._limits: list[_Limit] = []
        self.missing: dict[str, str] = {}
        self.group: Path | None = None

    def impose(self) -> None:
        """Impose the limits of this process; `impose_on` adds those of devices, once the devices are known."""
        for name, size in sorted(self._ceiling.sizes.items()):
            if find_resource(name).exhausts == "descriptors":
                self._impose(name, partial(_set_soft_limit, "RLIMIT_NOFILE", size))
            elif find_resource(name).exhausts == "memory":
                self._try_to_impose(name, partial(self._limit_memory, name), size)

    def impose_on(self, device: Vram | None) -> None:
        for name, size in self._ceiling.sizes.items():
            if find_resource(name).exhausts != "device":
                continue
            if device is None:
                self.missing[name] = "there is no device to limit"
            else:
                self._impose(name, partial(device.limit, size))

    def lift(self) -> None:
        """Lift the limits temporarily or for good, except the limit of a cgroup."""
        for limit in self._limits:
            limit.lift()

    def resume(self) -> None:
        """Impose the limits again; those that are in force stay."""
        for limit in self._limits:
            limit.impose()

    def _impose(self, name: str, set_it: Callable[[], Callable[[], None]]) -> None:
        limit = _Limit(set_it, [])
        self._try_to_impose(name, lambda _size: limit.impose(), 0)
        self._limits.append(limit)

    def _try_to_impose(self, name: str, impose: Callable[[int], None], size: int) -> None:
        try:
            impose(size)
        except (Unavailable, OSError, ValueError) as error:
            self.missing[name] = f"its ceiling cannot be set: {error}"

    def _limit_memory(self, name: str, size: int) -> None:
        if self._ceiling.means == "cgroup":
            group = MemoryGroup.make(size)
            self.group = group.path
            # The process stays in the cgroup until it ends, because its memory cannot be charged to another cgroup.
            group.join()
            return
        pages = [int(number) for number in Path("/proc/self/statm").read_text(encoding="ascii").split()[:2]]
        mapped, resident = (number * PAGE for number in pages)
        if size <= resident:
            has = format_amount(resident, "bytes")
            raise Unavailable(
                f"this process has {has} before the test starts, more than {format_amount(size, 'bytes')}"
            )
        # Memory that is mapped but not resident (libraries, reserved ranges) does not count against the ceiling.
        room = mapped - resident + size
        self._impose(name, partial(_set_soft_limit, "RLIMIT_AS", room))


def _set_soft_limit(name: str, size: int) -> Callable[[], None]:
    """Set a soft limit. Returns a function that restores the previous one."""
    resource = _import_resource()
    number = getattr(resource, name)
    before = resource.getrlimit(number)
    resource.setrlimit(number, (size, before[1]))
    return lambda: resource.setrlimit(number, before)


def _import_resource() -> ModuleType:
    try:
        import resource
    except ImportError:
        raise Unavailable("this system has no resource limits (RLIMIT)") from None
    return resource
