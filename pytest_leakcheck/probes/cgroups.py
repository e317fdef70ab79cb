"""Memory cgroups, of either version: the limits a process is under, and a group of our own with a limit (`MemoryGroup`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.base import Unavailable

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


@dataclass(frozen=True, slots=True)
class _Files:
    """How the two versions of cgroups call the same."""

    limit: str
    events: str


_V1: Final = _Files("memory.limit_in_bytes", "memory.oom_control")


_V2: Final = _Files("memory.max", "memory.events")


class MemoryGroup:
    """A group below this process's (version 1), or beside it (version 2, which has no processes above groups).

    Attributes:
        path: Its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = _V2 if (path / _V2.limit).exists() else _V1

    @classmethod
    def make(cls, limit: int) -> MemoryGroup:
        """Make one, and limit it; nobody is in it yet.

        Raises:
            Unavailable: This process may not, or there are no memory cgroups.
        """
        own = _own()
        if own is None:
            raise Unavailable("no cgroup of this process has a memory controller that could be found")
        path = own / f"leakcheck-{os.getpid()}"
        try:
            path.mkdir()
            group = cls(path)
            (path / group._files.limit).write_text(str(limit), encoding="ascii")
        except OSError as error:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise Unavailable(f"a memory cgroup cannot be made here ({error.strerror}: {path})") from None
        return group

    def join(self) -> None:
        """Move this process into it.

        Raises:
            Unavailable: It may not.
        """
        try:
            (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        except OSError as error:
            raise Unavailable(f"this process cannot be moved into {self.path} ({error.strerror})") from None

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed in it because memory ran out."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self.path / self._files.events).read_text(encoding="ascii").splitlines():
                word, _, number = line.partition(" ")
                if word == "oom_kill":
                    return int(number)
        return 0

    def remove(self) -> None:
        """When nobody is in it any more."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _own() -> Path | None:
    """Where a group of this process's own can be made."""
    with contextlib.suppress(OSError):
        for version, path in memory_paths():
            place = path.lstrip("/")
            if version == 1:
                return MOUNT / "memory" / place
            if (MOUNT / "cgroup.controllers").exists():
                here = MOUNT / place
                # Version 2 has processes in leaves alone.
                return here.parent if here != MOUNT else here
    return None
