"""Run one watch: sample the process tree, keep each row in the history, and append it to the ledger."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_leakcheck.attribution.live_handles import describe_target
from pytest_leakcheck.model.resources import DESCRIPTORS, RESIDENT
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.watch.history import SCHEMA, History, Ledger, Row
from pytest_leakcheck.watch.process_tree import Devices, Tree, command_of, memory_room

# Share of one core for what is expensive: the search for processes, limits, device memory, and descriptor targets.
_CPU_SHARE: Final = 0.004
# Maximum number of targets (what descriptors refer to) listed per process, because files may have ever new names. The
# others are counted together.
_MAX_TARGETS: Final = 20


class Following:
    """One watch of a process tree, recorded in ``history``, and in the ledger at ``path``."""

    def __init__(self, root: int, path: Path | None, interval: float) -> None:
        """Start to watch a process and its descendants; by default, the ledger is ``watch-PID.jsonl`` in this folder.

        The caller times the samples. Raise OSError if there is no such process, or the ledger cannot be written.
        """
        self.tree = Tree(root)
        self.path = path or Path(f"watch-{root}.jsonl")
        self._ledger: Ledger | None = Ledger(self.path)
        self._newcomers, self._devices = Newcomers(), Devices()
        self._device_memory: dict[str, tuple[int, int]] = {}
        self._search_due = float("-inf")
        start = Row(time.time(), SCHEMA, root, command_of(root), interval)
        self.history = History(start)
        self._record(start)

    def sample(self, step: int | None = None, *, search: bool = False) -> None:
        """Record all counters; and with ``search``, or if it is due, new processes, limits and new descriptors."""
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
        room, because = memory_room(self.tree.root)
        return limits | {RESIDENT: (values[RESIDENT] + room, because)}

    def _record(self, row: Row) -> None:
        self.history.add(row)
        try:
            if self._ledger is not None:
                self._ledger.write(row)
        except OSError as error:
            # A full disk must not end the watch, nor the training run that a `Watcher` is part of.
            self.history.notes[f"the ledger ends here, it can no longer be written: {error.strerror}"] = None
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
        """Return the new descriptors (`Row.new`) of processes whose count has changed since the last call."""
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
