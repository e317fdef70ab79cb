"""Read the counters of a process tree, and how much memory is left for it, once per second for days.

On Linux, two things are not read by psutil: the size of ``/proc/PID/fd`` is the number of descriptors, in 4 us (psutil
lists them), and `descendants` finds 66 of them in 2.7 ms (psutil reads all processes of the machine, at 43 us each).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from pytest_leakcheck.model.resources import CHILDREN, DESCRIPTORS, RESIDENT, THREADS
from pytest_leakcheck.probes.cgroups import MOUNT, PROC, groups_of
from pytest_leakcheck.probes.command_lines import show_command
from pytest_leakcheck.probes.gpu_driver import load_nvml, memory_of
from pytest_leakcheck.probes.processes import descendants

_LINUX: Final = sys.platform.startswith("linux")
# Whether the size of ``/proc/PID/fd`` is the number of descriptors. Before Linux 6.2, the size is 0.
_FD_COUNT_IS_SIZE: Final = _LINUX and os.stat("/proc/self/fd").st_size > 0
_COUNT_METHOD: Final = "num_handles" if sys.platform == "win32" else "num_fds"
_DEGRADED_NOTE: Final = f"on {sys.platform}, memory includes pages of files; descriptor limits and targets are not read"


class Tree:
    """A process and its descendants; each is followed until it ends, even if it leaves the tree by a double fork."""

    def __init__(self, root: int) -> None:
        """Follow the process, and its descendants from the first `find` on; OSError if there is no such process."""
        self.root = root
        self.notes = [] if _LINUX else [_DEGRADED_NOTE]
        self.followed: dict[int, tuple[str, psutil.Process]] = {}
        try:
            self._follow(root)
        except psutil.Error:
            raise ProcessLookupError(f"there is no process {root}") from None

    @property
    def ended(self) -> bool:
        """Whether the root had ended when it was last read."""
        return self.root not in self.followed

    def find(self) -> None:
        """Find new descendants, also of processes that have left the tree; takes long with thousands of threads."""
        found = _descendants(self.root)
        for pid in self.followed.keys() - {self.root, *found}:
            found += _descendants(pid)
        for pid in found:
            # The watch does not count itself: a watched shell may have started this process.
            if pid not in self.followed and pid != os.getpid():
                with contextlib.suppress(psutil.Error):
                    self._follow(pid)

    def read(self) -> dict[str, int]:
        """Return the values of a `ledger.Row`, and forget processes that have ended."""
        values = dict.fromkeys((DESCRIPTORS, THREADS, CHILDREN, RESIDENT), 0)
        for pid, (name, process) in list(self.followed.items()):
            try:
                fds, threads, rss = _read_process(process)
            except psutil.NoSuchProcess:
                del self.followed[pid]
                continue
            values[f"{RESIDENT} of {name} {pid}"] = rss
            values[RESIDENT] += rss
            values[THREADS] += threads
            if fds is not None:
                values[f"{DESCRIPTORS} of {name} {pid}"] = fds
                values[DESCRIPTORS] += fds
            elif (note := f"{name}: no permission to read its descriptors; only its memory is read") not in self.notes:
                self.notes.append(note)
        values[CHILDREN] = max(0, len(self.followed) - 1)
        return values

    def fd_limits(self) -> Iterator[tuple[str, int]]:
        """Yield the soft RLIMIT_NOFILE of each process by the name of its counter; nothing outside Linux."""
        for pid, (name, process) in self.followed.items() if _LINUX else ():
            with contextlib.suppress(psutil.Error):
                soft, _hard = process.rlimit(psutil.RLIMIT_NOFILE)
                if soft != psutil.RLIM_INFINITY:
                    yield f"{DESCRIPTORS} of {name} {pid}", soft

    def kill(self) -> None:
        """Kill all followed processes, after searching once more for new ones."""
        self.find()
        for _name, process in self.followed.values():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _follow(self, pid: int) -> None:
        process = psutil.Process(pid)
        self.followed[pid] = process.name(), process


def _read_process(process: psutil.Process) -> tuple[int | None, int, int]:
    """Return descriptors (on Windows handles; None without permission), threads, and resident bytes."""
    fds: int | None = None
    with contextlib.suppress(psutil.AccessDenied, OSError):
        if not _FD_COUNT_IS_SIZE:
            fds = getattr(process, _COUNT_METHOD)()
        elif os.access(path := f"/proc/{process.pid}/fd", os.R_OK):
            fds = os.stat(path).st_size
    memory = process.memory_info()
    # A zombie has no memory. `is_running` is False if the PID now belongs to another process.
    if not memory.rss or not process.is_running():
        raise psutil.NoSuchProcess(process.pid)
    return fds, process.num_threads(), memory.rss - getattr(memory, "shared", 0)


def _descendants(pid: int) -> list[int]:
    """List the live descendants of a process, parents before children."""
    with contextlib.suppress(psutil.Error):
        return list(descendants(pid)) if _LINUX else [one.pid for one in psutil.Process(pid).children(recursive=True)]
    return []


def command_of(pid: int) -> str:
    """Return the shortened command line with secrets masked; the name if there is none, "gone" if it has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return show_command(process.cmdline()) or process.name()
    return "gone"


def memory_room(pid: int, proc: Path = PROC, mount: Path = MOUNT) -> tuple[int, str]:
    """Return how many bytes are left before memory runs out, and what sets the limit: a cgroup or the machine."""
    rooms = [(psutil.virtual_memory().available, "memory of the machine")]
    for group in groups_of(pid, proc, mount):
        with contextlib.suppress(OSError, ValueError):
            lines = (group.folder / "memory.stat").read_text(encoding="ascii").splitlines()
            # The kernel can take pages of files back.
            reclaimable = next((int(number) for name, number in map(str.split, lines) if name == group.cache), 0)
            room = group.limit - int(group.usage.read_text(encoding="ascii")) + reclaimable
            rooms.append((max(0, room), f"cgroup {group.folder.name or 'root'}"))
    return min(rooms)


class Devices:
    """The memory that the driver has allocated on each device, in steps of up to 2 MiB, at up to 2 ms per device.

    The driver counts by the PIDs of the host, which a container does not see. ``note`` says what could not be read.
    """

    def __init__(self, nvml: Any = None) -> None:
        # Without `pynvml` there is no note, because most such machines have no NVIDIA device.
        self.note = ""
        self._handles: list[Any] = []
        self._nvml = nvml or load_nvml()
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlInit()
                count = self._nvml.nvmlDeviceGetCount()
                self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]

    def read(self, pids: Collection[int]) -> dict[str, tuple[int, int]]:
        """Return used and free bytes by device (``vram:0``): used by these PIDs, or by all if the driver knows none."""
        own: dict[str, tuple[int, int]] = {}
        whole: dict[str, tuple[int, int]] = {}
        for index, handle in enumerate(self._handles):
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                running = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except self._nvml.NVMLError as error:
                self.note = f"device {index} does not answer: {error}"
                continue
            if (used := memory_of(running, pids)) is not None:
                own[f"vram:{index}"] = used, int(memory.free)
            if running:
                whole[f"vram:{index}"] = int(memory.used), int(memory.free)
        if whole and not own:
            self.note = "device memory is counted for all processes: the driver cannot identify the watched ones"
        return own or whole

    def close(self) -> None:
        if self._handles:
            self._handles = []
            self._nvml.nvmlShutdown()
