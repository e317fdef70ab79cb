"""Where the processes that are watched would die: their limits of descriptors, and how much memory may still be added."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil

from pytest_leakcheck.probes.cgroups import MOUNT, PROC, groups_of


def fd_limit(pid: int) -> int | None:
    """Read RLIMIT_NOFILE (soft) of a process; None where there is none or it may not be read."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(psutil.Error):
            soft, _hard = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)
            return None if soft == psutil.RLIM_INFINITY else soft
    return None


def memory_room(pid: int, proc: Path = PROC, mount: Path = MOUNT) -> tuple[int, str]:
    """How many bytes may be added before memory runs out, and what sets that: a cgroup of the process, or the machine.

    Pages of files that a cgroup could give back are room.
    """
    rooms = []
    for group in groups_of(pid, proc, mount):
        with contextlib.suppress(OSError, ValueError):
            usage = int(group.usage.read_text(encoding="ascii")) - _field(group.folder / "memory.stat", group.cache)
            rooms.append((max(0, group.limit - usage), f"cgroup {group.folder.name or 'root'}"))
    return min([*rooms, (psutil.virtual_memory().available, "memory of the machine")])


def _field(path: Path, name: str) -> int:
    """The number behind this word, on a line of its own; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[:1] == [name]:
                return int(words[1])
    return 0
