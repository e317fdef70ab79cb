"""Read memory cgroup limits, and create a cgroup with a limit, in both versions of cgroups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.base import Unavailable

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
        for version, path in memory_paths(pid, proc):
            if version == 2:
                yield from _limited_ancestors(mount, path, "memory.max", "memory.current", "inactive_file")
            else:
                top = mount / "memory"
                yield from _limited_ancestors(
                    top, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
                )


def memory_paths(pid: int | str = "self", proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Yield the version and the path in each hierarchy that may limit memory; OSError without process or cgroups."""
    for line in (proc / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines():
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            yield 2, path
        elif "memory" in controllers.split(","):
            yield 1, path


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


@dataclass(frozen=True, slots=True)
class _FileNames:
    limit: str
    events: str


_V1_FILES: Final = _FileNames("memory.limit_in_bytes", "memory.oom_control")


_V2_FILES: Final = _FileNames("memory.max", "memory.events")


class MemoryGroup:
    """A memory cgroup that the plugin has created to limit a process.

    In version 1 it is a child of the process's cgroup. In version 2 it is a sibling, or a child of the root cgroup,
    because there all other cgroups that have child cgroups cannot hold processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = _V2_FILES if (path / _V2_FILES.limit).exists() else _V1_FILES

    @classmethod
    def make(cls, limit: int, find_parent: Callable[[], Path | None] | None = None) -> MemoryGroup:
        """Create an empty cgroup with a limit in bytes; raise `Unavailable` without permission or memory cgroups."""
        own = (find_parent or find_parent_group)()
        if own is None:
            raise Unavailable("no cgroup with a memory controller was found for this process")
        path = own / f"leakcheck-{os.getpid()}"
        try:
            path.mkdir()
            group = cls(path)
            (path / group._files.limit).write_text(str(limit), encoding="ascii")
        except OSError as error:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise Unavailable(f"a memory cgroup cannot be created here ({error.strerror}: {path})") from None
        return group

    def join(self) -> None:
        """Move this process into the cgroup; raise `Unavailable` if the kernel refuses."""
        try:
            (self.path / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        except OSError as error:
            raise Unavailable(f"this process cannot be moved into {self.path} ({error.strerror})") from None

    @property
    def kills(self) -> int:
        """The number of processes in the cgroup that the OOM killer has ended."""
        with contextlib.suppress(OSError, ValueError):
            for line in (self.path / self._files.events).read_text(encoding="ascii").splitlines():
                word, _, number = line.partition(" ")
                if word == "oom_kill":
                    return int(number)
        return 0

    def remove(self) -> None:
        """Remove the cgroup; does nothing while it still holds a process."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def find_parent_group() -> Path | None:
    """Return the folder of the cgroup in which to create another one; None if not found."""
    with contextlib.suppress(OSError):
        for version, path in memory_paths():
            place = path.lstrip("/")
            if version == 1:
                return MOUNT / "memory" / place
            if (MOUNT / "cgroup.controllers").exists():
                here = MOUNT / place
                # Version 2 allows processes only in cgroups without children.
                return here.parent if here != MOUNT else here
    return None
