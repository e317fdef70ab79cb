"""All that a watch has seen so far, in bounded memory: the same for a watch that runs and for a ledger that is read."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Mapping
from typing import Final

from pytest_leakcheck.watch.events import Began, Came, Ended, Event, Limits, News, Note, Reading, Sample

# A watch of a night has 40,000 samples; a picture and a slope need some hundreds.
_MOST: Final = 512
_MOST_NOTES: Final = 20
# Processes that have ended are kept by what they held last, the latest of them.
_MOST_GONE: Final = 64


class Track:
    """One counter: readings at equal distances, thinned to every second when there are too many."""

    def __init__(self) -> None:
        self.at, self.steps, self.values = array("d"), array("q"), array("q")
        self.last = 0
        self._stride, self._seen = 1, 0

    def add(self, at: float, step: int, value: int) -> None:
        """Args: step: -1 where none is known."""
        self.last = value
        if self._seen % self._stride == 0:
            self.at.append(at)
            self.steps.append(step)
            self.values.append(value)
            if len(self.at) > _MOST:
                self.at, self.steps, self.values = self.at[::2], self.steps[::2], self.values[::2]
                self._stride *= 2
        self._seen += 1


class History:
    """One watch.

    Attributes:
        began: How it began.
        totals: Counters of the whole tree, by name.
        processes: Descriptors and memory of each live process, by pid and name (``fd``, ``rss``).
        names: What processes call themselves, by pid.
        limits: RLIMIT_NOFILE by pid.
        room: How much may be added, by name of the total.
        because: What sets that limit.
        new: Descriptors that were not there at first, by pid and target.
        looked: When that was, in seconds since the epoch.
        notes: What was said, each once.
        ended: Why it is over; empty while it is not.
        samples: How many there were.
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
        self._now: dict[int, Reading] = {}
        self._gone: deque[int] = deque()

    @property
    def seconds(self) -> float:
        """From the first sample to the last."""
        return self.last - self.first

    @property
    def steps(self) -> int | None:
        """The last step that is known."""
        track = self.totals.get("fd")
        return track.steps[-1] if track is not None and len(track.steps) and track.steps[-1] >= 0 else None

    @property
    def alive(self) -> Mapping[int, Reading]:
        """The last readings of live processes."""
        return self._now

    def absorb(self, event: Event) -> None:
        """Take in what happened."""
        match event:
            case Sample():
                self._add(event)
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
                raise ValueError("a watch begins once")

    def note(self, text: str) -> None:
        """Keep what is said, once, and not without end."""
        if text not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(text)

    def new_targets(self) -> Counter[str]:
        """The new descriptors of all processes, by target."""
        counts: Counter[str] = Counter()
        for found in self.new.values():
            counts.update(found)
        return counts

    def _add(self, sample: Sample) -> None:
        step = -1 if sample.step is None else sample.step
        if not self.samples:
            self.first = sample.at
        self.samples += 1
        self.last = sample.at
        for name, value in sample.totals.items():
            if name not in self.totals:
                self.totals[name] = Track()
            self.totals[name].add(sample.at, step, value)
        for pid in sample.gone:
            self._forget(pid)
        # In a ledger a process that has not changed is left out.
        self._now.update(sample.processes)
        for pid, reading in self._now.items():
            tracks = self.processes.get(pid)
            if tracks is None:
                tracks = self.processes[pid] = {"fd": Track(), "rss": Track()}
            tracks["fd"].add(sample.at, step, reading.fds)
            tracks["rss"].add(sample.at, step, reading.rss)

    def _forget(self, pid: int) -> None:
        self._now.pop(pid, None)
        self.went += 1
        self._gone.append(pid)
        if len(self._gone) > _MOST_GONE:
            old = self._gone.popleft()
            for kept in (self.processes, self.names, self.limits, self.new):
                kept.pop(old, None)
