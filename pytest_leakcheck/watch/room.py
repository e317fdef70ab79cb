"""Where the processes that are watched would die: their limits of descriptors, and how much memory may still be added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc")
# Version 1 writes "no limit" as the largest number of pages.
_ENDLESS: Final = 1 << 60


def fd_limit(pid: int, proc: Path = _PROC) -> int | None:
    """RLIMIT_NOFILE (soft) of a process; None where there is none or it may not be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / str(pid) / "limits").read_text(encoding="ascii").splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return None if soft == "unlimited" else int(soft)
    return None


def memory_room(pid: int, proc: Path = _PROC, mount: Path = _MOUNT) -> tuple[int, str] | None:
    """How many bytes may be added before memory runs out, and what sets that: a cgroup of the process, or the machine.

    Pages of files that a cgroup could give back are room. None where nothing can be read.
    """
    rooms = [*_group_rooms(pid, proc, mount)]
    if available := _field(proc / "meminfo", "MemAvailable:"):
        rooms.append((available * 1024, "memory of the machine"))
    return min(rooms, default=None)


def _group_rooms(pid: int, proc: Path, mount: Path) -> Iterator[tuple[int, str]]:
    """Of each cgroup on the way up, of either version, that has a limit."""
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
            _number, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _up(mount, path, ("memory.max", "memory.current", "inactive_file"))
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _up(mount / "memory", path, names)


def _up(top: Path, path: str, names: tuple[str, str, str]) -> Iterator[tuple[int, str]]:
    limit_name, usage_name, cache = names
    # Within a container the path may be that of the host, and the group's files be at the top.
    here = top / path.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(top):
            break
        with contextlib.suppress(OSError, ValueError):
            limit = int((folder / limit_name).read_text(encoding="ascii"))
            if limit < _ENDLESS:
                usage = int((folder / usage_name).read_text(encoding="ascii"))
                yield max(0, limit - usage + _field(folder / "memory.stat", cache)), f"cgroup {folder.name or 'root'}"


def _field(path: Path, name: str) -> int:
    """The number behind this word, on a line of its own; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[:1] == [name]:
                return int(words[1])
    return 0
