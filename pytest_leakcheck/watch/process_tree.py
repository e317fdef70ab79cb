"""Read the counters of a process tree from outside, once per second for days.

psutil reads all but two of them. Descriptors are counted by the size of ``/proc/PID/fd``, which takes 4 us whatever their
number; psutil lists them. Descendants come from ``/proc/PID/task/TID/children``: 2.7 ms for 66 of them, where psutil reads all
processes of the machine, 43 us for each. Where there are thousands of threads, both take longer, so the search is rate-limited.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Final

import psutil

from pytest_leakcheck.probes.processes import descendants
from pytest_leakcheck.watch.cpu_budget import Allowance
from pytest_leakcheck.watch.events import Came, Event, Note, Reading, Sample

_ROUND: Final = 1000
# Share of one core for the search.
_SEARCH: Final = 0.003
_COMMAND_LENGTH: Final = 200
_LINUX: Final = sys.platform.startswith("linux")
# Since Linux 6.2.
_FD_COUNT_IS_SIZE: Final = _LINUX and os.stat("/proc/self/fd").st_size > 0
_COUNT_FDS: Final = "num_handles" if sys.platform == "win32" else "num_fds"
_DEGRADED: Final = (
    f"on {sys.platform} memory includes pages of files, and limits of descriptors and what they point to are not read"
)


class WatchError(Exception):
    """Report that a process cannot be watched; the message says why."""


class Tree:
    """Sample a process and its descendants.

    A process that was seen once is followed until it ends, also where it leaves the tree by a double fork.
    """

    def __init__(self, root: int) -> None:
        """Raises `WatchError` where there is no such process."""
        self.root = root
        self._followed: dict[int, psutil.Process] = {}
        self._hidden: set[int] = set()
        self._news: list[Event] = [] if _LINUX else [Note(time.time(), _DEGRADED)]
        try:
            self._follow(root)
        except psutil.Error:
            raise WatchError(f"there is no process {root}") from None
        self._search = Allowance(_SEARCH)
        self._search.do(self._find_new)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are followed, the root first."""
        return tuple(self._followed)

    @property
    def ended(self) -> bool:
        """Whether the root is gone."""
        return self.root not in self._followed

    def sample(self, step: int | None = None) -> Sample:
        """Read all of them now, and stop following those that have ended.

        Args:
            step: Of the training.
        """
        if self._search.due:
            self._search.do(self._find_new)
        processes, gone = {}, []
        for pid, process in self._followed.items():
            try:
                processes[pid] = self._read(process)
            except psutil.NoSuchProcess:
                gone.append(pid)
        for pid in gone:
            del self._followed[pid]
            self._hidden.discard(pid)
        readings = processes.values()
        totals = {
            "fd": sum(max(0, one.fds) for one in readings),
            "thread": sum(one.threads for one in readings),
            "process": max(0, len(processes) - 1),
            "rss": sum(one.rss for one in readings),
        }
        return Sample(round(time.time() * _ROUND) / _ROUND, step, totals, processes, tuple(gone))

    def kill(self) -> None:
        """Kill the processes that are followed, and those that are new."""
        self._find_new()
        for process in self._followed.values():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def events(self) -> Iterator[Event]:
        """Yield who came, and what may not be read, since the last call."""
        news, self._news = self._news, []
        yield from news

    def _read(self, process: psutil.Process) -> Reading:
        """Raises `psutil.NoSuchProcess` where it has ended."""
        memory = process.memory_info()
        # Zombies have no memory. A pid that was given to another process is not the one that is followed.
        if not memory.rss or not process.is_running():
            raise psutil.NoSuchProcess(process.pid)
        fds = -1 if process.pid in self._hidden else count_fds(process)
        return Reading(fds, process.num_threads(), memory.rss - getattr(memory, "shared", 0))

    def _find_new(self) -> None:
        names = {}
        found = descendants_of(self.root)
        # Below those that have left the tree, too.
        for pid in self._followed.keys() - {self.root, *found}:
            found += descendants_of(pid)
        for pid in found:
            # A shell that is watched may have started this very process.
            if pid in self._followed or pid == os.getpid():
                continue
            with contextlib.suppress(psutil.Error):
                names[pid] = self._follow(pid)
        if names:
            self._news.append(Came(time.time(), names))

    def _follow(self, pid: int) -> str:
        """Returns its name."""
        process = psutil.Process(pid)
        name = process.name()
        self._followed[pid] = process
        if _LINUX and not os.access(f"/proc/{pid}/fd", os.R_OK):
            self._hidden.add(pid)
            text = f"process {pid} ({name}): its descriptors may not be read, its memory is"
            self._news.append(Note(time.time(), text))
        return name


def count_fds(process: psutil.Process) -> int:
    """Count open descriptors (handles on Windows); -1 where they may not be read.

    Raises:
        psutil.NoSuchProcess: It has ended.
    """
    try:
        if _FD_COUNT_IS_SIZE:
            return os.stat(f"/proc/{process.pid}/fd").st_size
        return int(getattr(process, _COUNT_FDS)())
    except psutil.AccessDenied:
        return -1
    except OSError:
        raise psutil.NoSuchProcess(process.pid) from None


def descendants_of(pid: int) -> list[int]:
    """List the live descendants of a process, parents before children."""
    if _LINUX:
        return list(descendants(pid))
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def command_of(pid: int) -> str:
    """Read the command line of a process, shortened; its name where that may not be read."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        with contextlib.suppress(psutil.AccessDenied):
            if words := process.cmdline():
                return " ".join(words)[:_COMMAND_LENGTH]
        return process.name()
    return "gone"
