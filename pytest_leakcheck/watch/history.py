"""Keep the rows of a watch in bounded memory, and write and read them as a ledger of JSON lines."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, ClassVar, Final

from pytest_leakcheck.model.decoding import DecodeError, decode, encode, parse
from pytest_leakcheck.model.regular_file import FileError, Ours, open_regular, write_all
from pytest_leakcheck.model.resources import RESIDENT, RESOURCES

# Version of the format; `read_ledger` rejects others.
SCHEMA: Final = 1
# A file of one month of a thousand processes is about as large.
_MOST_BYTES: Final = 4 << 30
_MOST_LINE: Final = 4 << 20
LEDGER: Final = Ours("a watch ledger", re.compile(rb'\s*\{[^\n]*"watch":'))
# A process whose memory changes by fewer bytes is not written again, because memory changes in
# every row.
_MIN_RSS_CHANGE_BYTES: Final = 1 << 20
_RSS: Final = f"{RESIDENT} of "
_ENDED: Final = -1
# Maximum number of readings in a track: a watch of one night takes 40,000 samples, a slope and a
# chart need hundreds.
_MAX_READINGS: Final = 512
# Number of counters of ended processes that are kept; these are the last ones to end.
_MAX_ENDED: Final = 128


@dataclass(frozen=True, slots=True)
class Row:
    """What was read at one moment, or a watch's start or end; a ledger may hold several watches.

    Attributes:
        at: Seconds since the epoch.
        watch: The version of the format in the first row of a watch, with ``root`` (its PID),
            ``command`` and ``interval`` (seconds); 0 in other rows.
        step: Step of the training; None if it is not known.
        values: Counters by name: ``fd``, ``thread``, ``process``, ``rss`` and ``vram:N`` of the
            whole tree, ``fd of NAME PID`` and ``rss of NAME PID`` of each process. A line of the
            ledger has only those that have changed, with -1 for those of a process that has ended.
        limits: The value at which a counter ends the run, and what sets that limit, by the same
            names.
        new: Descriptors that a process has opened since it was first seen, by the name of its
            counter and by target.
        ended: Why the watch ended. A watch without this was killed, or still runs. ``notes`` says
            what was not read.
    """

    SPARSE: ClassVar = True

    at: float
    watch: int = 0
    root: int = 0
    command: str = ""
    interval: float = 0.0
    step: int | None = None
    values: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    new: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ended: str = ""


class Ledger:
    """A file to append rows to; OSError if it cannot be opened (`open_ledger`) or written."""

    def __init__(self, path: Path, *, follow: bool = True) -> None:
        self._file = open_ledger(path, follow=follow)
        self._written: dict[str, int] = {}
        if self._file.tell():
            # A watch that was killed may have left half a line; end it, to keep the next one apart.
            self._file.write(b"\n")

    def write(self, row: Row) -> None:
        """Append one line, in a single write call."""
        if row.values:
            changed = {
                name: value
                for name, value in row.values.items()
                if abs(value - self._written.get(name, math.inf))
                >= (_MIN_RSS_CHANGE_BYTES if name.startswith(_RSS) else 1)
            }
            ended = dict.fromkeys(self._written.keys() - row.values.keys(), _ENDED)
            self._written = {name: self._written.get(name, 0) for name in row.values} | changed
            row = replace(row, values=changed | ended)
        write_all(self._file, json.dumps(encode(row), separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def open_ledger(path: Path, *, follow: bool = True) -> IO[bytes]:
    """Open a ledger, new or to append to, unbuffered.

    Raise OSError if it cannot be written, or is another file. With `follow`, the path may be a
    link. Others may know the default name, and link it to a file of this user's.
    """
    if path.exists() and path.stat().st_size and not is_ledger(path):
        raise FileError(
            path, f"it exists, and is not {LEDGER.what}", "name another file, or remove this one"
        )
    return open_regular(path, "ab", follow=follow)


def is_ledger(path: Path) -> bool:
    """Return whether a file begins like a ledger of any version; `OSError` if it is unreadable."""
    with open_regular(path, most=_MOST_BYTES) as file:
        return LEDGER.begin.match(file.read(_MOST_LINE)) is not None


def read_ledger(path: Path) -> Iterator[Row]:
    """Yield the rows with all their values.

    A line that cannot be read, such as a torn one, becomes a row with a note. Raise `DecodeError`
    if the first line is not the start of a watch.
    """
    values: dict[str, int] = {}
    with open_regular(path, most=_MOST_BYTES) as file:
        for number, line in enumerate(iter(lambda: file.readline(_MOST_LINE), b""), start=1):
            if number > 1 and line == b"\n":
                continue
            try:
                row = decode(Row, parse(line))
                if row.watch not in ({SCHEMA} if number == 1 else {0, SCHEMA}):
                    raise DecodeError(
                        f"watch {row.watch} is not {SCHEMA}: written by another version"
                    )
                if unknown := [name for name in row.values if resource_name(name) not in RESOURCES]:
                    raise DecodeError(f"unknown counter {unknown[0]!r}")
            except ValueError as error:
                if number == 1:
                    raise DecodeError(f"not a watch ledger: {error}") from None
                yield Row(0.0, notes=(f"line {number} cannot be read: {error}",))
                continue
            all_values = {} if row.watch else values | dict(row.values)
            values = {name: value for name, value in all_values.items() if value != _ENDED}
            yield replace(row, values={} if row.ended else values)


def resource_name(counter: str) -> str:
    """Return ``vram`` of ``vram:0``, and ``fd`` of ``fd of python 42``."""
    return counter.partition(" ")[0].partition(":")[0]


class Track:
    """The readings of one counter, at equal intervals.

    If there are too many, every other one is dropped. ``at`` is in seconds since the epoch;
    ``steps`` are -1 if unknown, or empty if not used.
    """

    def __init__(
        self, at: Iterable[float] = (), steps: Iterable[int] = (), values: Iterable[int] = ()
    ) -> None:
        self.at, self.steps, self.values = array("d", at), array("q", steps), array("q", values)
        self._stride, self._seen = 1, 0

    def add(self, at: float, step: int, value: int) -> None:
        if self._seen % self._stride == 0:
            self.at.append(at)
            self.steps.append(step)
            self.values.append(value)
            if len(self.at) > _MAX_READINGS:
                self.at, self.steps, self.values = self.at[::2], self.steps[::2], self.values[::2]
                self._stride *= 2
        self._seen += 1

    def part(self, start: int, end: int) -> Track:
        return Track(self.at[start:end], self.steps[start:end], self.values[start:end])


class History:
    """The state of one watch.

    ``tracks`` has the readings by name of the counter, with those of the last processes to end.
    ``values``, ``limits``, ``new``, ``step`` and ``ended`` are the latest of the rows, and
    ``notes`` their notes, as keys. ``live`` says whether more rows may come. ``first`` and ``last``
    are the times of samples, ``looked`` that of ``new``.
    """

    def __init__(self, start: Row) -> None:
        self.start = start
        self.tracks: dict[str, Track] = {}
        self.values: Mapping[str, int] = {}
        self.limits: dict[str, tuple[int, str]] = {}
        self.new: dict[str, Mapping[str, int]] = {}
        self.notes: dict[str, None] = {}
        self.step: int | None = None
        self.ended, self.live = "", True
        self.samples = 0
        self.first = self.last = self.looked = start.at
        self._gone: deque[str] = deque()

    def add(self, row: Row) -> None:
        self.notes |= dict.fromkeys(row.notes)
        self.limits.update(row.limits)
        if row.ended:
            self.ended, self.live = row.ended, False
        if row.step is not None:
            self.step = row.step
        if row.new:
            self.new.update(row.new)
            self.looked = row.at
        if not row.values:
            return
        self.first = self.first if self.samples else row.at
        self.last = row.at
        self.samples += 1
        for name, value in row.values.items():
            if name not in self.tracks:
                self.tracks[name] = Track()
            self.tracks[name].add(row.at, -1 if row.step is None else row.step, value)
        self._gone.extend(self.values.keys() - row.values.keys())
        self.values = row.values
        while len(self._gone) > _MAX_ENDED:
            old = self._gone.popleft()
            for kept in (self.tracks, self.limits, self.new):
                kept.pop(old, None)


def read_histories(path: Path) -> list[History]:
    """Return the watches of a ledger in order; raise `DecodeError` if it is none."""
    found: list[History] = []
    for row in read_ledger(path):
        if row.watch:
            found.append(History(row))
            found[-1].live = False
        found[-1].add(row)
    if not found:
        raise DecodeError("not a watch ledger: the file is empty")
    return found
