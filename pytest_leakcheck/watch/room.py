"""Where the processes that are watched would die: their limits of descriptors, and how much memory may still be added."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pytest_leakcheck.probes.groups import MOUNT, PROC, groups_of


def fd_limit(pid: int, proc: Path = PROC) -> int | None:
    """RLIMIT_NOFILE (soft) of a process; None where there is none or it may not be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / str(pid) / "limits").read_text(encoding="ascii").splitlines():
            if line.startswith("Max open files"):
                soft = line.split()[3]
                return None if soft == "unlimited" else int(soft)
    return None


def memory_room(pid: int, proc: Path = PROC, mount: Path = MOUNT) -> tuple[int, str] | None:
    """How many bytes may be added before memory runs out, and what sets that: a cgroup of the process, or the machine.

    Pages of files that a cgroup could give back are room. None where nothing can be read.
    """
    rooms = []
    for group in groups_of(pid, proc, mount):
        with contextlib.suppress(OSError, ValueError):
            usage = int(group.usage.read_text(encoding="ascii")) - _field(group.folder / "memory.stat", group.cache)
            rooms.append((max(0, group.limit - usage), f"cgroup {group.folder.name or 'root'}"))
    if available := _field(proc / "meminfo", "MemAvailable:"):
        rooms.append((available * 1024, "memory of the machine"))
    return min(rooms, default=None)


def _field(path: Path, name: str) -> int:
    """The number behind this word, on a line of its own; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[:1] == [name]:
                return int(words[1])
    return 0
