"""One watch: reads the tree, and now and then what is dear, and hands on each event to the ledger and the history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pytest_leakcheck.watch.cpu_budget import Allowance
from pytest_leakcheck.watch.events import Began, Came, Ended, Event, Limits, News, Note, Reading, Sample
from pytest_leakcheck.watch.gpu import Devices
from pytest_leakcheck.watch.history import History
from pytest_leakcheck.watch.ledger import Ledger
from pytest_leakcheck.watch.new_descriptors import Newcomers
from pytest_leakcheck.watch.process_limits import fd_limit, memory_room
from pytest_leakcheck.watch.process_tree import Tree, command_of

# Of one core each: what descriptors point to, limits, memory of devices.
_SHARE: Final = 0.0005


class Following:
    """A tree of processes that is followed.

    Attributes:
        history: What was seen so far.
    """

    def __init__(self, root: int, ledger: Ledger | None, interval: float) -> None:
        """
        Args:
            root: The process at the top.
            ledger: Where events are appended; closed by the caller.
            interval: Seconds between samples, as the ledger tells it.

        Raises:
            WatchError: There is no such process.
        """
        self._tree = Tree(root)
        self._ledger = ledger
        self._newcomers, self._devices = Newcomers(), Devices()
        self._look, self._limits, self._driver = (Allowance(_SHARE) for _ in range(3))
        self._on_devices: dict[str, tuple[int, int]] = {}
        began = Began(time.time(), root, command_of(root), interval)
        self.history = History(began)
        self._write(began)

    @property
    def ended(self) -> bool:
        """Whether the root is gone, or the watch was ended."""
        return self._tree.ended or bool(self.history.ended)

    def sample(self, step: int | None = None) -> Sample:
        """Read everything that is due."""
        sample = self._tree.sample(step)
        self._welcome(sample)
        if self._driver.due:
            self._driver.do(lambda: self._read_devices(sample.at))
        if self._on_devices:
            used = {name: used for name, (used, _free) in self._on_devices.items()}
            sample = replace(sample, totals={**sample.totals, **used})
        if self._tree.pids:
            # When all are gone there is nothing that fell to 0.
            self._tell(sample)
        if self._limits.due:
            self._limits.do(lambda: self._tell_limits(sample.at))
        if self._look.due:
            self._look.do(lambda: self._tell_news(sample))
        return sample

    def _welcome(self, sample: Sample) -> None:
        """Those that are new."""
        processes = sample.processes
        if not self.history.samples:
            self._meet(processes)
        for event in self._tree.events():
            self._tell(event)
            if isinstance(event, Came):
                self._meet({pid: processes[pid] for pid in event.names if pid in processes})

    def _read_devices(self, at: float) -> None:
        self._on_devices = self._devices.read(self._tree.pids)
        if self._devices.note and self._devices.note not in self.history.notes:
            self._tell(Note(at, self._devices.note))

    def kill(self) -> None:
        """Kill what is left of the tree."""
        self._tree.kill()

    def end(self, because: str) -> None:
        """The watch is over. A second call does nothing."""
        if not self.history.ended:
            if not self._tree.ended:
                # Of what leaks the last state is wanted, whatever it costs.
                self._tell_news(self.sample(self.history.steps))
            self._tell(Ended(time.time(), because))
            self._devices.close()

    def _meet(self, processes: Mapping[int, Reading]) -> None:
        """What is only seen of a process that is new: where it ends, and what it began with."""
        fds = {pid: limit for pid in processes if (limit := fd_limit(pid)) is not None}
        self._tell(Limits(time.time(), fds, self.history.room, self.history.because))
        self._newcomers.meet(processes)

    def _tell(self, event: Event) -> None:
        self.history.absorb(event)
        self._write(event)

    def _write(self, event: Event) -> None:
        if self._ledger is None:
            return
        try:
            self._ledger.write(event)
        except OSError as error:
            # A full disk must end neither the watch nor, where it runs inside one, the training.
            self._ledger = None
            self.history.note(f"the ledger ends here, it cannot be written any more: {error.strerror}")

    def _tell_limits(self, at: float) -> None:
        known = self.history.limits
        fds = {
            pid: limit for pid in self._tree.pids if (limit := fd_limit(pid)) is not None and limit != known.get(pid)
        }
        room = {name: free for name, (_used, free) in self._on_devices.items()}
        because = {name: f"device {name.partition(':')[2]}" for name in room}
        room["rss"], because["rss"] = memory_room(self._tree.root)
        self._tell(Limits(at, fds, room, because))

    def _tell_news(self, sample: Sample) -> None:
        found = self._newcomers.look(sample.processes)
        if found:
            self._tell(News(sample.at, found))


def default_ledger(root: int) -> Path:
    """Where a watch is written if nobody says where: in this folder."""
    return Path(f"watch-{root}.jsonl")
