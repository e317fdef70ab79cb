"""Read the counters of a process tree, cheaply enough to do so once per second for days.

On Linux, this module reads two things itself, because psutil is slower: the number of descriptors as the size of
``/proc/PID/fd``, in 4 us for any number (psutil lists them); descendants from ``/proc/PID/task/TID/children``, in 2.7
ms for 66 of them (psutil reads all processes of the machine, at 43 us each). Both ways to find descendants take longer
with thousands of threads, so this search is rate-limited.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Final

import psutil

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.resources import CHILDREN, DESCRIPTORS, RESIDENT, THREADS
from pytest_leakcheck.probes.command_lines import show_command
from pytest_leakcheck.probes.processes import descendants
from pytest_leakcheck.watch.cpu_budget import Allowance
from pytest_leakcheck.watch.events import Came, Event, Note, Reading, Sample

# The time of a sample is rounded to milliseconds.
_TICKS_PER_SECOND: Final = 1000
# Share of one core for the search for new processes.
_SEARCH_CPU_SHARE: Final = 0.003
_LINUX: Final = sys.platform.startswith("linux")
# Whether the size of ``/proc/PID/fd`` is the number of descriptors. Before Linux 6.2, the size is 0.
_FD_COUNT_IS_SIZE: Final = _LINUX and os.stat("/proc/self/fd").st_size > 0
_COUNT_METHOD: Final = "num_handles" if sys.platform == "win32" else "num_fds"
_DEGRADED_NOTE: Final = f"on {sys.platform}, memory includes pages of files; descriptor limits and targets are not read"


class WatchError(LeakcheckError):
    """A process that cannot be watched; the message says why."""


class Tree:
    """A process and its descendants; each is sampled until it ends, even if it leaves the tree by a double fork."""

    def __init__(self, root: int) -> None:
        """Start to follow a process and its descendants; raise `WatchError` if there is no such process."""
        self.root = root
        self._followed: dict[int, psutil.Process] = {}
        self._unreadable: set[int] = set()
        self._pending_events: list[Event] = [] if _LINUX else [Note(time.time(), _DEGRADED_NOTE)]
        try:
            self._follow(root)
        except psutil.Error:
            raise WatchError(f"there is no process {root}") from None
        self._search_allowance = Allowance(_SEARCH_CPU_SHARE)
        self._search_allowance.do(self._find_new_processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs of the followed processes, the root first."""
        return tuple(self._followed)

    @property
    def ended(self) -> bool:
        """Whether the root had ended at the last sample."""
        return self.root not in self._followed

    def sample(self, step: int | None = None) -> Sample:
        """Read the counters of all followed processes, and forget those that have ended."""
        if self._search_allowance.due:
            self._search_allowance.do(self._find_new_processes)
        processes, gone = {}, []
        for pid, process in self._followed.items():
            try:
                processes[pid] = self._read_process(process)
            except psutil.NoSuchProcess:
                gone.append(pid)
        for pid in gone:
            del self._followed[pid]
            self._unreadable.discard(pid)
        readings = processes.values()
        totals = {
            DESCRIPTORS: sum(max(0, one.fds) for one in readings),
            THREADS: sum(one.threads for one in readings),
            CHILDREN: max(0, len(processes) - 1),
            RESIDENT: sum(one.rss for one in readings),
        }
        return Sample(round(time.time() * _TICKS_PER_SECOND) / _TICKS_PER_SECOND, step, totals, processes, tuple(gone))

    def kill(self) -> None:
        """Kill all followed processes, after searching once more for new ones."""
        self._find_new_processes()
        for process in self._followed.values():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def events(self) -> Iterator[Event]:
        """Yield the events since the last call: new processes, and notes on what cannot be read."""
        news, self._pending_events = self._pending_events, []
        yield from news

    def _read_process(self, process: psutil.Process) -> Reading:
        memory = process.memory_info()
        # A zombie has ended and has no memory. `is_running` is False if the PID now belongs to another process.
        if not memory.rss or not process.is_running():
            raise psutil.NoSuchProcess(process.pid)
        fds = -1 if process.pid in self._unreadable else count_fds(process)
        return Reading(fds, process.num_threads(), memory.rss - getattr(memory, "shared", 0))

    def _find_new_processes(self) -> None:
        names = {}
        found = descendants_of(self.root)
        # Also search below the processes that have left the tree.
        for pid in self._followed.keys() - {self.root, *found}:
            found += descendants_of(pid)
        for pid in found:
            # The watch does not count itself: a watched shell may have started this process.
            if pid in self._followed or pid == os.getpid():
                continue
            with contextlib.suppress(psutil.Error):
                names[pid] = self._follow(pid)
        if names:
            self._pending_events.append(Came(time.time(), names))

    def _follow(self, pid: int) -> str:
        """Follow a process from now on, and return its name."""
        process = psutil.Process(pid)
        name = process.name()
        self._followed[pid] = process
        if _LINUX and not os.access(f"/proc/{pid}/fd", os.R_OK):
            self._unreadable.add(pid)
            text = f"process {pid} ({name}): no permission to read its descriptors; only its memory is read"
            self._pending_events.append(Note(time.time(), text))
        return name


def count_fds(process: psutil.Process) -> int:
    """Count open descriptors (handles on Windows); -1 without permission. Raise `psutil.NoSuchProcess` if it ended."""
    try:
        if _FD_COUNT_IS_SIZE:
            return os.stat(f"/proc/{process.pid}/fd").st_size
        return int(getattr(process, _COUNT_METHOD)())
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
    """Return the shortened command line with secrets masked, or the name if there is none; "gone" if it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        with contextlib.suppress(psutil.AccessDenied):
            if words := process.cmdline():
                return show_command(words)
        return process.name()
    return "gone"
