"""Read the resource limits at which this process would fail, and lift one for the plugin's own files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.memory import PAGE
from pytest_leakcheck.probes.own_descriptors import raised_limit

if sys.platform != "win32":
    # The function itself: a test may replace that of the module.
    from resource import RLIMIT_FSIZE, getrlimit

PROC: Final = Path("/proc")
MOUNT: Final = Path("/sys/fs/cgroup")
# A limit of this many bytes or more means "no limit", which version 1 reports as the largest multiple of the page size
# that fits into a signed 64-bit number.
_UNLIMITED_BYTES: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup with a memory limit in bytes, shared by all its processes.

    ``usage`` is the file with the bytes in use; ``cache`` is the key in ``memory.stat`` of the reclaimable part.
    """

    folder: Path
    limit: int
    usage: Path
    cache: str


def groups_of(pid: int | str = "self", proc: Path = PROC, mount: Path = MOUNT) -> Iterator[Group]:
    """Yield the cgroups of a process that have a memory limit, innermost first; none if they cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            _number, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _limited_ancestors(mount, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                version_1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                yield from _limited_ancestors(mount / "memory", path, *version_1)


def _limited_ancestors(top: Path, path: str, limit_name: str, usage: str, cache: str) -> Iterator[Group]:
    # In a container the path may be the host's, which does not exist here. The files of the process's cgroup are then
    # in `top`, the last folder of this loop.
    here = top / path.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(top):
            break
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text(encoding="ascii"))
            if limit < _UNLIMITED_BYTES:
                yield Group(folder, limit, folder / usage, cache)


def read_limits() -> dict[str, int]:
    """Return the limits of ``fd``, ``heap`` and ``rss``, without those that are unknown or infinite.

    ``fd``: soft RLIMIT_NOFILE; others: the smallest of the cgroup limits and the machine's memory, in bytes.
    """
    limits: dict[str, int] = {}
    with contextlib.suppress(ImportError, OSError):
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            limits["fd"] = soft
    memory = [size for size in (_machine_memory(), *(group.limit for group in groups_of())) if size]
    if memory:
        limits["heap"] = limits["rss"] = min(memory)
    return limits


def memory_left(proc: Path = PROC, mount: Path = MOUNT) -> int:
    """Return the bytes that this process may still take: of the machine, its cgroups and its own limit; 0 if unknown."""
    left: list[int] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        available = (proc / "meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2]
        left.append(int(available.split()[0]) << 10)
    for group in groups_of(proc=proc, mount=mount):
        with contextlib.suppress(OSError, ValueError):
            used = int(group.usage.read_text(encoding="ascii"))
            lines = (group.folder / "memory.stat").read_text(encoding="ascii").splitlines()
            reclaimable = next((int(line.split()[1]) for line in lines if line.split()[0] == group.cache), 0)
            left.append(group.limit - used + reclaimable)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            left.append(soft - int((proc / "self" / "statm").read_text(encoding="ascii").split()[0]) * PAGE)
    return max(0, min(left)) if left else 0


def free_on(folder: str) -> int:
    """Return the free bytes of the disk or memory that holds a folder; 0 if unknown."""
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):
        return 0
    return found.f_bavail * found.f_frsize


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * PAGE
    except (ValueError, OSError, AttributeError):
        return 0


def room_for_files() -> AbstractContextManager[None]:
    """Raise the limit on file sizes while a report is written."""
    if sys.platform == "win32":
        return nullcontext()
    soft, hard = getrlimit(RLIMIT_FSIZE)
    return nullcontext() if soft == hard else raised_limit(RLIMIT_FSIZE, hard)
