"""Read the limits at which this process would fail, and lift one for the plugin's own files."""

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
    from resource import RLIM_INFINITY, RLIMIT_FSIZE, RLIMIT_NPROC, getrlimit

PROC: Final = Path("/proc")
MOUNT: Final = Path("/sys/fs/cgroup")
# A limit of this many bytes or more means "no limit", which version 1 reports as the largest
# multiple of the page size that fits into a signed 64-bit number.
_UNLIMITED_BYTES: Final = 1 << 60
# What is left of something without a limit, or with one that cannot be read.
UNLIMITED: Final = sys.maxsize
# By controller, the files with the limit and with what is in use: in version 2, and in version 1.
_FILES: Final = {
    "memory": (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ),
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
}


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup whose processes share a limit of memory in bytes, or of processes and threads.

    ``usage`` is the file with what is in use; ``cache`` is the key in ``memory.stat`` of the
    reclaimable part.
    """

    folder: Path
    limit: int
    usage: Path
    cache: str


def groups_of(
    pid: int | str = "self", proc: Path = PROC, mount: Path = MOUNT, controller: str = "memory"
) -> Iterator[Group]:
    """Yield a process's cgroups that have a limit, innermost first; none if unreadable."""
    version_2, version_1 = _FILES[controller]
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            _number, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _limited_ancestors(mount, path, *version_2, "inactive_file")
            elif controller in controllers.split(","):
                yield from _limited_ancestors(
                    mount / controller, path, *version_1, "total_inactive_file"
                )


def _limited_ancestors(
    top: Path, path: str, limit_name: str, usage: str, cache: str
) -> Iterator[Group]:
    # In a container the path may be the host's, which does not exist here. The files of the
    # process's cgroup are then in `top`, the last folder of this loop.
    here = top / path.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(top):
            break
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text(encoding="ascii"))
            if limit < _UNLIMITED_BYTES:
                yield Group(folder, limit, folder / usage, cache)


def read_limits() -> dict[str, int]:
    """Return the limits of ``fd``, ``heap`` and ``rss`` without unknown or infinite ones.

    ``fd``: soft RLIMIT_NOFILE; others: the smallest of the cgroup limits and the machine's memory,
    in bytes.
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
    """Return the bytes that this process may still take of the machine, cgroups and own limit."""
    left = [UNLIMITED]
    with contextlib.suppress(OSError, ValueError, IndexError):
        available = (proc / "meminfo").read_text(encoding="ascii").partition("MemAvailable:")[2]
        left.append(int(available.split()[0]) << 10)
    for group in groups_of(proc=proc, mount=mount):
        with contextlib.suppress(OSError, ValueError):
            used = int(group.usage.read_text(encoding="ascii"))
            lines = (group.folder / "memory.stat").read_text(encoding="ascii").splitlines()
            reclaimable = next(
                (int(line.split()[1]) for line in lines if line.split()[0] == group.cache), 0
            )
            left.append(group.limit - used + reclaimable)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, _hard = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            left.append(
                soft - int((proc / "self" / "statm").read_text(encoding="ascii").split()[0]) * PAGE
            )
    return max(0, min(left))


def tasks_left(proc: Path = PROC, mount: Path = MOUNT) -> int:
    """Return how many processes and threads this user and the cgroups may still start."""
    left = [UNLIMITED]
    for group in groups_of(proc=proc, mount=mount, controller="pids"):
        with contextlib.suppress(OSError, ValueError):
            left.append(group.limit - int(group.usage.read_text(encoding="ascii")))
    # Root may start more than its limit.
    if (
        sys.platform != "win32"
        and os.getuid()
        and (soft := getrlimit(RLIMIT_NPROC)[0]) != RLIM_INFINITY
    ):
        left.append(soft - _count_tasks_of(os.getuid(), proc))
    return max(0, min(left))


def _count_tasks_of(user: int, proc: Path) -> int:
    # Cost: 3 us for each process of the machine.
    tasks = 0
    for folder in proc.glob("[0-9]*/task"):
        with contextlib.suppress(OSError):
            status = folder.stat()
            tasks += status.st_nlink - 2 if status.st_uid == user else 0
    return tasks


def free_on(folder: str) -> tuple[int, int]:
    """Return the free bytes and the free entries of the disk or memory that holds a folder."""
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):
        return UNLIMITED, UNLIMITED
    # Some file systems make entries as long as there are bytes.
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else UNLIMITED


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
