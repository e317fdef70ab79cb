"""A memory cgroup of this process's own, where the kernel allows one: a limit on it and its children that the kernel enforces."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.cgroups import MOUNT, memory_paths


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
        """How many processes the kernel has ended in it for want of memory."""
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
