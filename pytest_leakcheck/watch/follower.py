"""Run one watch: sample the process tree, and record each event. Expensive readings are less frequent than samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_leakcheck.model.resources import RESIDENT
from pytest_leakcheck.watch.cpu_budget import Allowance
from pytest_leakcheck.watch.events import Began, Came, Ended, Event, Limits, News, Note, Reading, Sample
from pytest_leakcheck.watch.gpu import Devices
from pytest_leakcheck.watch.history import History
from pytest_leakcheck.watch.ledger import Ledger
from pytest_leakcheck.watch.new_descriptors import Newcomers
from pytest_leakcheck.watch.process_limits import fd_limit, memory_room
from pytest_leakcheck.watch.process_tree import Tree, command_of

# Share of one core for each kind of expensive reading: descriptor targets, limits, device memory.
_CPU_SHARE: Final = 0.0005


class Following:
    """One watch of a process tree, recorded in ``history``."""

    def __init__(self, root: int, ledger: Ledger | None, interval: float) -> None:
        """Start to watch a process and its descendants; raise `WatchError` if there is no such process.

        The caller closes the ledger (None: no file), and times the samples: ``interval`` is only recorded.
        """
        self._tree = Tree(root)
        self._ledger = ledger
        self._newcomers, self._devices = Newcomers(), Devices()
        self._descriptor_allowance, self._limits_allowance, self._device_allowance = (
            Allowance(_CPU_SHARE) for _ in range(3)
        )
        self._device_memory: dict[str, tuple[int, int]] = {}
        began = Began(time.time(), root, command_of(root), interval)
        self.history = History(began)
        self._write(began)

    @property
    def ended(self) -> bool:
        """Whether the root process has ended, or `end` was called."""
        return self._tree.ended or bool(self.history.ended)

    def sample(self, step: int | None = None) -> Sample:
        """Read all counters of the tree, and the expensive readings that are due."""
        sample = self._tree.sample(step)
        self._record_new_processes(sample)
        if self._device_allowance.due:
            self._device_allowance.do(lambda: self._read_devices(sample.at))
        if self._device_memory:
            used = {name: used for name, (used, _free) in self._device_memory.items()}
            sample = replace(sample, totals={**sample.totals, **used})
        if self._tree.pids:
            # When all processes have ended, no sample is recorded: its totals would look like a drop to 0.
            self._emit(sample)
        if self._limits_allowance.due:
            self._limits_allowance.do(lambda: self._emit_limits(sample.at))
        if self._descriptor_allowance.due:
            self._descriptor_allowance.do(lambda: self._emit_new_descriptors(sample))
        return sample

    def _record_new_processes(self, sample: Sample) -> None:
        processes = sample.processes
        if not self.history.samples:
            self._record_first_state(processes)
        for event in self._tree.events():
            self._emit(event)
            if isinstance(event, Came):
                self._record_first_state({pid: processes[pid] for pid in event.names if pid in processes})

    def _read_devices(self, at: float) -> None:
        self._device_memory = self._devices.read(self._tree.pids)
        if self._devices.note and self._devices.note not in self.history.notes:
            self._emit(Note(at, self._devices.note))

    def kill(self) -> None:
        self._tree.kill()

    def end(self, because: str) -> None:
        """End the watch with a last sample. A second call does nothing."""
        if not self.history.ended:
            if not self._tree.ended:
                # Search for new descriptors even if no search is due, because the last state shows most of a leak.
                self._emit_new_descriptors(self.sample(self.history.steps))
            self._emit(Ended(time.time(), because))
            self._devices.close()

    def _record_first_state(self, processes: Mapping[int, Reading]) -> None:
        """Record the descriptor limits and the initial descriptors of new processes."""
        fds = {pid: limit for pid in processes if (limit := fd_limit(pid)) is not None}
        self._emit(Limits(time.time(), fds, self.history.room, self.history.because))
        self._newcomers.meet(processes)

    def _emit(self, event: Event) -> None:
        self.history.absorb(event)
        self._write(event)

    def _write(self, event: Event) -> None:
        if self._ledger is None:
            return
        try:
            self._ledger.write(event)
        except OSError as error:
            # A full disk must not end the watch, nor the training run that a `Watcher` is part of.
            self._ledger = None
            self.history.note(f"the ledger ends here, it can no longer be written: {error.strerror}")

    def _emit_limits(self, at: float) -> None:
        known = self.history.limits
        fds = {
            pid: limit for pid in self._tree.pids if (limit := fd_limit(pid)) is not None and limit != known.get(pid)
        }
        room = {name: free for name, (_used, free) in self._device_memory.items()}
        because = {name: f"device {name.partition(':')[2]}" for name in room}
        room[RESIDENT], because[RESIDENT] = memory_room(self._tree.root)
        self._emit(Limits(at, fds, room, because))

    def _emit_new_descriptors(self, sample: Sample) -> None:
        found = self._newcomers.look(sample.processes)
        if found:
            self._emit(News(sample.at, found))


def default_ledger(root: int) -> Path:
    """Return the default path of a ledger: ``watch-PID.jsonl`` in the current folder."""
    return Path(f"watch-{root}.jsonl")
