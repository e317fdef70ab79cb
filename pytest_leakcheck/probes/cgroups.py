"""The memory cgroups that a process is in, of either version: their limits, on the way up to the root."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
MOUNT: Final = Path("/sys/fs/cgroup")
# Version 1 writes "no limit" as the largest number of pages.
_ENDLESS: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class Group:
    """One that has a limit.

    Attributes:
        folder: Where its files are.
        limit: Bytes that all in it may have.
        usage: The file that says what they have.
        cache: The word in ``memory.stat`` before what of that the kernel could give back.
    """

    folder: Path
    limit: int
    usage: Path
    cache: str


def groups_of(pid: int | str = "self", proc: Path = PROC, mount: Path = MOUNT) -> Iterator[Group]:
    """Those with a limit, from the innermost outwards; none where nothing can be read.

    Args:
        pid: Of the process.
        proc: Where processes are listed.
        mount: Where groups are.
    """
    with contextlib.suppress(OSError, ValueError):
        for version, path in memory_paths(pid, proc):
            if version == 2:
                yield from _up(mount, path, "memory.max", "memory.current", "inactive_file")
            else:
                top = mount / "memory"
                yield from _up(top, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_paths(pid: int | str = "self", proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Yield the path of a process in each hierarchy that may limit memory, after the version of cgroups.

    Raises:
        OSError: It is gone, or this system has no cgroups.
    """
    for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            yield 2, path
        elif "memory" in controllers.split(","):
            yield 1, path


def _up(top: Path, path: str, limit_name: str, usage: str, cache: str) -> Iterator[Group]:
    # Within a container the path may be that of the host, and the group's files be at the top.
    here = top / path.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(top):
            break
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text(encoding="ascii"))
            if limit < _ENDLESS:
                yield Group(folder, limit, folder / usage, cache)
