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
    return _select_names(
        folder,
        names,
        (used for pid in _other_processes(_own_processes()) for used in (_open_paths(pid), _mapped_paths(pid, folder))),
    )


def used_here(folder: str, names: Collection[str]) -> frozenset[str]:
    """Return the entries that are in use by this process or a descendant."""
    return _select_names(
        folder, names, (used for pid in _own_processes() for used in (_open_paths(pid), _mapped_paths(pid, folder)))
    )


def _select_names(folder: str, names: Collection[str], used: Iterable[Iterable[str]]) -> frozenset[str]:
    wanted, prefix = frozenset(names), folder.rstrip("/") + "/"
    below = (path[len(prefix) :].partition("/")[0] for paths in used for path in paths if path.startswith(prefix))
    return frozenset(name for name in below if name in wanted)


def _own_processes() -> set[int]:
    return {os.getpid(), *descendants(os.getpid())}


def _mapped_paths(pid: int, folder: str) -> Iterator[str]:
    return (one.path for one in read_mappings(str(pid), os.fsencode(folder)))


def _other_processes(own: Collection[int]) -> Iterator[int]:
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own)


def _open_paths(pid: int) -> Iterator[str]:
    # The process may have ended, or belong to another user.
    with contextlib.suppress(OSError):
        yield os.readlink(f"/proc/{pid}/cwd")
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{descriptor}")
