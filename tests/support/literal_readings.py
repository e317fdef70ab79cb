"""Readings written down in a test, and stand-ins for the probes and the clocks, which say what the test says."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_leakcheck.probes.base import Instrument, Stateless, Unavailable
from pytest_leakcheck.probes.processes import TreeCount
from pytest_leakcheck.runner import readings
from pytest_leakcheck.runner.readings import Instruments, Samples
from repeats import Clock


class SleepingClock(Clock):
    """A clock that also advances while the package sleeps, and notes for how long; iterations take no CPU time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.monkeypatch = monkeypatch
        self.pauses: list[float] = []
        self.process = self.thread = 0.0
        monkeypatch.setattr("pytest_leakcheck.probes.clock.sleep", self._sleep)
        monkeypatch.setattr("pytest_leakcheck.probes.clock.process_time", lambda: self.process)
        monkeypatch.setattr("pytest_leakcheck.probes.clock.thread_time", lambda: self.thread)

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def samples_of(columns: Mapping[str, Sequence[int]], **released: Sequence[int]) -> Samples:
    """Return samples with these readings, as many of each counter, and room for ten rows more."""
    (length,) = {len(column) for column in columns.values()}
    samples = Samples(length + 10)
    for stored, given in ((samples.columns, columns), (samples.released, released)):
        for name, values in given.items():
            stored[name] = samples.new_column()
            stored[name][: len(values)] = array("q", values)
    samples.n = length - 1
    return samples


class LiteralTree:
    """A process tree with the counts that a function returns; this process has one descriptor less of them."""

    def __init__(self, read: Callable[[], tuple[int, int, int]] = lambda: (5, 1, 0)) -> None:
        self.count = read
        self.state = "made"

    def open(self) -> None:
        self.state = "open"

    def close(self) -> None:
        self.state = "closed"

    def read(self) -> TreeCount:
        return TreeCount(*self.count())

    def own(self) -> tuple[int, int]:
        fds, threads, _processes = self.count()
        return fds - 1, threads

    def own_fds(self) -> int:
        return self.own()[0]


class LiteralProbe(Stateless):
    """A probe of one counter, with the value that a test sets."""

    def __init__(self, resource: str, value: int = 0) -> None:
        self.resource, self.value = resource, value

    def read(self) -> int:
        return self.value


class LiteralFolder:
    """A watched folder; `left_out` are the rows of the entries that must not count, which `leave_out` returns once."""

    path = "/dev/shm"
    private = False
    uncounted = ""

    def __init__(self, resource: str = "shm", error: BaseException | None = None) -> None:
        self.resource, self.error, self.state = resource, error, "made"
        self.count = self.known = self.aside = 0
        self.left_out: list[range] = []
        self.calls: list[object] = []

    def open(self) -> None:
        if self.error is not None:
            raise self.error
        self.state = "open"

    def close(self) -> None:
        self.state = "closed"

    def read(self) -> int:
        return self.count + 100

    def relist(self, row: int, *, waiting: bool = False) -> None:
        self.calls.append(("relist", row, waiting))

    @property
    def unknown(self) -> bool:
        return bool(self.left_out)

    def leave_out(self, last: int, *, set_aside: bool) -> list[range]:
        self.calls.append(("leave_out", last, set_aside))
        rows, self.left_out = self.left_out, []
        return rows


def open_literal(
    monkeypatch: pytest.MonkeyPatch,
    probes: Iterable[Instrument] = (),
    *,
    tree: LiteralTree | None = None,
    folders: Iterable[LiteralFolder] = (),
    missing: Mapping[str, Unavailable] | None = None,
    gauges: Mapping[str, Callable[[], int]] | None = None,
    wanted: Iterable[str] = (),
) -> Instruments:
    """Open instruments that read nothing of this machine."""
    opened, listed = list(probes), tuple(folders)
    with monkeypatch.context() as patched:
        patched.setattr(readings, "process_tree", lambda: tree or LiteralTree())
        patched.setattr(readings, "open_instruments", lambda _names: (opened, dict(missing or {})))
        patched.setattr(readings, "watched_folders", lambda: listed)
        instruments = Instruments([*wanted, *(one.resource for one in listed)], gauges or {})
    watch = SimpleNamespace(enabled=False, hides_objects=lambda: False, shows_old_objects=lambda: False)
    instruments.watch = cast("Any", watch)
    return instruments
