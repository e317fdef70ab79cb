"""Run a watch: sample a process tree once per second for days, keep rows, and write the ledger.

On Linux, two things are not read by psutil: the size of ``/proc/PID/fd`` is the number of
descriptors, in 4 us (psutil lists them), and `descendants` finds 66 of them in 2.7 ms (psutil reads
all processes of the machine, at 43 us each).
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from pytest_leakcheck.attribution.handles import describe_target
from pytest_leakcheck.model.resources import CHILDREN, DESCRIPTORS, RESIDENT, THREADS
from pytest_leakcheck.probes.accelerators import load_nvml, memory_of
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.probes.processes import descendants, show_command
from pytest_leakcheck.probes.resource_limits import MOUNT, PROC, groups_of
from pytest_leakcheck.watch.history import SCHEMA, History, Ledger, Row

# Share of one core for what is expensive: the search for processes, limits, device memory, and
# descriptor targets.
_CPU_SHARE: Final = 0.004
# Maximum number of targets (what descriptors refer to) listed per process, because files may have
# ever new names. The others are counted together.
_MAX_TARGETS: Final = 20
_LINUX: Final = sys.platform.startswith("linux")
# Whether the size of ``/proc/PID/fd`` is the number of descriptors. Before Linux 6.2, the size is
# 0.
_FD_COUNT_IS_SIZE: Final = _LINUX and os.stat("/proc/self/fd").st_size > 0
_COUNT_METHOD: Final = "num_handles" if sys.platform == "win32" else "num_fds"
_DEGRADED_NOTE: Final = (
    f"on {sys.platform}, memory includes pages of files; descriptor limits and targets are not read"
)


class Tree:
    """A process and its descendants, which are followed to their end even after a double fork."""

    def __init__(self, root: int) -> None:
        """Follow the process, and its descendants from the first `find` on.

        Raise OSError if there is no such process.
        """
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
        """Find new descendants, also of processes that have left the tree.

        This takes long with thousands of threads.
        """
        found = _descendants(self.root)
        for pid in self.followed.keys() - {self.root, *found}:
            found += _descendants(pid)
        for pid in found:
            # The watch does not count itself: a watched shell may have started this process.
            if pid not in self.followed and pid != os.getpid():
                with contextlib.suppress(psutil.Error):
                    self._follow(pid)

    def read(self) -> dict[str, int]:
        """Return the `history.Row.values`, and forget processes that have ended."""
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
            elif (
                note := f"{name}: no permission to read its descriptors; only its memory is read"
            ) not in self.notes:
                self.notes.append(note)
        values[CHILDREN] = max(0, len(self.followed) - 1)
        return values

    def fd_limits(self) -> Iterator[tuple[str, int]]:
        """Yield each process's soft RLIMIT_NOFILE by the name of its counter; only on Linux."""
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
    """Return descriptors (Windows: handles; None without permission), threads, resident bytes."""
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
        return (
            list(descendants(pid))
            if _LINUX
            else [one.pid for one in psutil.Process(pid).children(recursive=True)]
        )
    return []


def command_of(pid: int) -> str:
    """Return the command line by `show_command`, else the name; "gone" if the process has ended."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return show_command(process.cmdline(), f"/proc/{pid}/cwd") or process.name()
    return "gone"


def memory_room(pid: int, proc: Path = PROC, mount: Path = MOUNT) -> tuple[int, str] | None:
    """Return the bytes left before memory runs out, and what limits them: a cgroup or the machine.

    None if neither can be read, as in a container that hides most of /proc.
    """
    rooms = []
    with contextlib.suppress(OSError):
        rooms.append((psutil.virtual_memory().available, "memory of the machine"))
    for group in groups_of(pid, proc, mount):
        with contextlib.suppress(OSError, ValueError):
            lines = (group.folder / "memory.stat").read_text(encoding="ascii").splitlines()
            # The kernel can take pages of files back.
            reclaimable = next(
                (int(number) for name, number in map(str.split, lines) if name == group.cache), 0
            )
            room = group.limit - int(group.usage.read_text(encoding="ascii")) + reclaimable
            rooms.append((max(0, room), f"cgroup {group.folder.name or 'root'}"))
    return min(rooms, default=None)


class Devices:
    """The memory that the driver has allocated on each device.

    Resolution: up to 2 MiB. Cost: up to 2 ms per device. The driver counts by the PIDs of the host,
    which a container does not see. ``note`` says what could not be read.
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
                self._handles = [
                    self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)
                ]

    def read(self, pids: Collection[int]) -> dict[str, tuple[int, int]]:
        """Return used and free bytes by device (``vram:0``).

        The used bytes are those of these PIDs, or of all if the driver knows none.
        """
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


class Following:
    """One watch of a process tree, recorded in ``history``, and in the ledger at ``path``."""

    def __init__(self, root: int, path: Path | None, interval: float) -> None:
        """Start to watch a process and its descendants.

        By default, the ledger is ``watch-PID.jsonl`` in this folder. The caller times the samples.
        Raise OSError if there is no such process, or the ledger cannot be written.
        """
        self.tree = Tree(root)
        self.path = path or Path(f"watch-{root}.jsonl")
        self._ledger: Ledger | None = Ledger(self.path, follow=path is not None)
        self._newcomers, self._devices = Newcomers(), Devices()
        self._device_memory: dict[str, tuple[int, int]] = {}
        self._search_due = float("-inf")
        start = Row(time.time(), SCHEMA, root, command_of(root), interval)
        self.history = History(start)
        self._record(start)

    def sample(self, step: int | None = None, *, search: bool = False) -> None:
        """Record all counters; if ``search`` or due, also limits, new processes and descriptors."""
        at, began = round(time.time(), 3), time.thread_time()
        search = search or time.monotonic() >= self._search_due
        if search:
            self.tree.find()
            self._device_memory = self._devices.read(self.tree.followed)
        values = self.tree.read()
        if not self.tree.followed:
            # After the last process has ended, the totals would look like a drop to 0.
            return
        values |= {name: used for name, (used, _free) in self._device_memory.items()}
        limits = self._read_limits(values) if search else {}
        new = self._newcomers.look(values) if search else {}
        notes = {*self.tree.notes, self._devices.note} - {"", *self.history.notes}
        self._record(Row(at, step=step, values=values, limits=limits, new=new, notes=tuple(notes)))
        if search:
            self._search_due = time.monotonic() + (time.thread_time() - began) / _CPU_SHARE

    def end(self, because: str) -> None:
        """End the watch, with a last sample if the root process still runs."""
        if not self.tree.ended:
            # Search even if that is not due, because the last state shows most of a leak.
            self.sample(self.history.step, search=True)
        self._record(Row(time.time(), ended=because))
        self._devices.close()
        self._close_ledger()

    def _read_limits(self, values: Mapping[str, int]) -> dict[str, tuple[int, str]]:
        limits = {name: (limit, f"ulimit -n {limit:,}") for name, limit in self.tree.fd_limits()}
        for name, (used, free) in self._device_memory.items():
            limits[name] = used + free, f"device {name.partition(':')[2]}"
        if (found := memory_room(self.tree.root)) is not None:
            limits[RESIDENT] = values[RESIDENT] + found[0], found[1]
        return limits

    def _record(self, row: Row) -> None:
        self.history.add(row)
        try:
            if self._ledger is not None:
                self._ledger.write(row)
        except OSError as error:
            # A full disk must not end the watch, nor the training run that a `Watcher` is part of.
            self.history.notes[
                f"the ledger ends here, it can no longer be written: {error.strerror}"
            ] = None
            self._close_ledger()

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None


class Newcomers:
    """The descriptors that each process has opened since it was first seen."""

    def __init__(self) -> None:
        # By the name of the counter of each process: its initial targets, and the last count.
        self._seen: dict[str, tuple[Counter[str], int]] = {}

    def look(self, values: Mapping[str, int]) -> dict[str, dict[str, int]]:
        """Return the new descriptors (`Row.new`) of processes whose count has changed.

        The count is compared with that of the last call.
        """
        before, self._seen, found = self._seen, {}, {}
        for name, count in values.items():
            if name.startswith(f"{DESCRIPTORS} of "):
                initial, last = before.get(name) or (_count_targets(name), count)
                self._seen[name] = initial, count
                if count != last:
                    new = _count_targets(name) - initial
                    found[name] = dict(new.most_common(_MAX_TARGETS))
                    if rest := new.total() - sum(found[name].values()):
                        found[name]["others"] = rest
        return found


def _count_targets(name: str) -> Counter[str]:
    return Counter(map(describe_target, open_targets(name.rpartition(" ")[2]).values()))
