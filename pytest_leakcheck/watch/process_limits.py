"""Read the descriptor limits of processes, and how much memory is left for them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil

from pytest_leakcheck.probes.cgroups import MOUNT, PROC, groups_of


def fd_limit(pid: int) -> int | None:
    """Return the soft RLIMIT_NOFILE of a process; None if infinite, if it cannot be read, or outside Linux."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(psutil.Error):
            soft, _hard = psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE)
            return None if soft == psutil.RLIM_INFINITY else soft
    return None


def memory_room(pid: int, proc: Path = PROC, mount: Path = MOUNT) -> tuple[int, str]:
    """Return how many bytes are left before memory runs out, and what sets the limit: a cgroup or the machine.

    File pages that the kernel can reclaim from a cgroup count as free.
    """
    rooms = []
    for group in groups_of(pid, proc, mount):
        with contextlib.suppress(OSError, ValueError):
            usage = int(group.usage.read_text(encoding="ascii")) - _read_field(
                group.folder / "memory.stat", group.cache
            )
            rooms.append((max(0, group.limit - usage), f"cgroup {group.folder.name or 'root'}"))
    return min([*rooms, (psutil.virtual_memory().available, "memory of the machine")])


def _read_field(path: Path, name: str) -> int:
    """Return the number after a name in a file with one name and number per line; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[:1] == [name]:
                return int(words[1])
    return 0
