"""Find folder entries in use: a process has them, or something below, open, mapped or as its working directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator

from pytest_leakcheck.probes.mappings import read_mappings
from pytest_leakcheck.probes.processes import descendants


def used_by_others(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the entries in use by processes other than this one and its descendants, of the same user (by /proc).

    Cost: about 2 us for each descriptor of each process of the same user, and the time to read their mappings.
    """
    own = _own_processes()
    with contextlib.suppress(OSError):
        return _find_used(folder, names, (int(name) for name in os.listdir("/proc") if name.isdigit()), own)
    return frozenset()


def used_here(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the entries that are in use by this process or a descendant."""
    return _find_used(folder, names, _own_processes())


def _find_used(
    folder: str, names: Collection[str], processes: Iterable[int], without: Collection[int] = ()
) -> frozenset[str]:
    prefix, inodes = folder.rstrip("/") + "/", {}
    for name in names:
        with contextlib.suppress(OSError):
            inodes[os.lstat(prefix + name).st_ino] = name
    used: set[str] = set()
    for pid in processes:
        if pid not in without:
            mapped = [one for one in read_mappings(str(pid), os.fsencode(prefix)) if one.path.startswith(prefix)]
            used.update(path[len(prefix) :] for path in _open_paths(pid) if path.startswith(prefix))
            # By inode, too: `sem_open` maps a semaphore, and then renames it.
            used.update(name for one in mapped for name in (one.path[len(prefix) :], inodes.get(one.inode, "")))
    return frozenset(path.partition("/")[0] for path in used).intersection(names)


def _own_processes() -> set[int]:
    return {os.getpid(), *descendants(os.getpid())}


def _open_paths(pid: int) -> Iterator[str]:
    # The process may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        yield os.readlink(f"/proc/{pid}/cwd")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
