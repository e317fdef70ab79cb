"""Keep the state of a watch in bounded memory, from the events of a running watch or of a ledger."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from pytest_leakcheck.model.resources import DESCRIPTORS, RESIDENT
from pytest_leakcheck.watch.events import Began, Came, Ended, Event, Limits, News, Note, Reading, Sample

# Maximum number of readings in a track. A watch of one night takes 40,000 samples, but a chart and a slope need only a
# few hundred.
_MAX_READINGS: Final = 512
_MAX_NOTES: Final = 20
# Number of ended processes whose readings are kept; these are the last ones to end.
_MAX_ENDED_PROCESSES: Final = 64


class Track:
    """The readings of one counter, at equal intervals.

    When there are too many, every other one is dropped, and the interval doubles. ``at`` is in seconds since the epoch;
    ``steps`` are those of the training, -1 if not known; ``last`` is the latest reading, even if it was dropped.
    """

    def __init__(self) -> None:
        self.at, self.steps, self.values = array("d"), array("q"), array("q")
        self.last = 0
        self._stride, self._seen = 1, 0

    def add(self, at: float, step: int, value: int) -> None:
        self.last = value
        if self._seen % self._stride == 0:
            self.at.append(at)
            self.steps.append(step)
            self.values.append(value)
            if len(self.at) > _MAX_READINGS:
                self.at, self.steps, self.values = self.at[::2], self.steps[::2], self.values[::2]
                self._stride *= 2
        self._seen += 1


class History:
    """The state of one watch.

    Attributes:
        totals: Tracks of the whole tree, by name of the counter.
        processes: Tracks of each live process and of the last ones to end, by PID and name (``fd``, ``rss``).
        names: Names of the processes below the root, by PID.
        limits: Soft limit of descriptors (RLIMIT_NOFILE) by PID.
        room: Bytes that may still be added before a limit is reached, by name of the total.
        because: What sets that limit, as text, by the same names.
        new: Number of open descriptors that a process did not have when the watch first saw it, by PID and target.
        looked: When `new` was last updated; this, `first` and `last` (sample) are in seconds since the epoch.
        ended: Why the watch ended; empty if it has not.
        came: Number of processes found below the root; `went` is the number of those that have ended.
    """

    def __init__(self, began: Began) -> None:
        self.began = began
        self.totals: dict[str, Track] = {}
        self.processes: dict[int, dict[str, Track]] = {}
        self.names: dict[int, str] = {}
        self.limits: dict[int, int] = {}
        self.room: dict[str, int] = {}
        self.because: dict[str, str] = {}
        self.new: dict[int, Mapping[str, int]] = {}
        self.notes: list[str] = []
        self.ended = ""
        self.samples = 0
        self.came = self.went = 0
        self.first = self.last = self.looked = began.at
        self._latest: dict[int, Reading] = {}
        # The step of the last sample that had one. Tracks are thinned out, so the last step in a track may be older.
        self._step: int | None = None
        self._ended_pids: deque[int] = deque()

    @property
    def seconds(self) -> float:
        """Seconds from the first sample to the last."""
        return self.last - self.first

    @property
    def steps(self) -> int | None:
        """Step of the last sample that had one; None if unknown."""
        return self._step

    @property
    def alive(self) -> Mapping[int, Reading]:
        """The last reading of each live process, by PID."""
        return self._latest

    def absorb(self, event: Event) -> None:
        """Update the state with an event; raise ValueError if it is the start of another watch."""
        match event:
            case Sample():
                self._add_sample(event)
            case Came(_at, names):
                self.names.update(names)
                self.came += len(names)
            case Limits(_at, fds, room, because):
                self.limits.update(fds)
                self.room, self.because = dict(room), dict(because)
            case News(at, targets):
                self.new.update(targets)
                self.looked = at
            case Note(_at, text):
                self.note(text)
            case Ended(_at, because):
                self.ended = because
            case Began():
                raise ValueError("a watch can begin only once")

    def note(self, text: str) -> None:
        """Keep a remark, unless it is already kept or there are too many."""
        if text not in self.notes and len(self.notes) < _MAX_NOTES:
            self.notes.append(text)

    def new_targets(self) -> Counter[str]:
        """Return the number of new descriptors of all processes, by target."""
        counts: Counter[str] = Counter()
        for found in self.new.values():
            counts.update(found)
        return counts

    def _add_sample(self, sample: Sample) -> None:
        step = -1 if sample.step is None else sample.step
        if not self.samples:
            self.first = sample.at
        self.samples += 1
        self.last = sample.at
        if sample.step is not None:
            self._step = sample.step
        for name, value in sample.totals.items():
            if name not in self.totals:
                self.totals[name] = Track()
            self.totals[name].add(sample.at, step, value)
        for pid in sample.gone:
            self._remove_process(pid)
        # A ledger omits processes that have not changed, so the latest readings of all live processes are added.
        self._latest.update(sample.processes)
        for pid, reading in self._latest.items():
            tracks = self.processes.get(pid)
            if tracks is None:
                tracks = self.processes[pid] = {DESCRIPTORS: Track(), RESIDENT: Track()}
            tracks[DESCRIPTORS].add(sample.at, step, reading.fds)
            tracks[RESIDENT].add(sample.at, step, reading.rss)

    def _remove_process(self, pid: int) -> None:
        self._latest.pop(pid, None)
        self.went += 1
        self._ended_pids.append(pid)
        if len(self._ended_pids) > _MAX_ENDED_PROCESSES:
            old = self._ended_pids.popleft()
            for kept in (self.processes, self.names, self.limits, self.new):
                kept.pop(old, None)
