"""What happens while something is watched, as values with a JSON form: a line of the ledger each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

SCHEMA: Final = 1


class EventError(ValueError):
    """A JSON value that is no event of this schema."""


@dataclass(frozen=True, slots=True)
class Began:
    """A watch begins; a ledger that is appended to has several.

    Attributes:
        at: Seconds since the epoch.
        root: The process at the top of the tree.
        command: Its command line.
        interval: Seconds between samples; they may come later, where steps take longer.
    """

    at: float
    root: int
    command: str
    interval: float


class Reading(NamedTuple):
    """One process at one moment. A tuple, since a frozen dataclass takes a microsecond more, for each process and second.

    Attributes:
        fds: Open descriptors; -1 where they may not be read.
        threads: Threads of the kernel.
        rss: Anonymous resident memory in bytes; pages of files are no part of it.
    """

    fds: int
    threads: int
    rss: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All counters at one moment.

    Attributes:
        at: Seconds since the epoch.
        step: Of the training, where it tells.
        totals: Over the whole tree, by name: ``fd``, ``thread``, ``process``, ``rss``, and ``vram:N`` for a device.
        processes: By pid; in a ledger only those that have changed.
        gone: Processes that have ended since the last sample.
    """

    at: float
    step: int | None
    totals: Mapping[str, int]
    processes: Mapping[int, Reading] = field(default_factory=dict)
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Came:
    """Processes that are followed from now on, by pid, with what they are called."""

    at: float
    names: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Limits:
    """Where it ends.

    Attributes:
        at: Seconds since the epoch.
        fds: RLIMIT_NOFILE (soft) of each process, by pid.
        room: How much may still be added to ``rss`` and ``vram:N``, in bytes.
        because: What sets that limit, in words, by the same names.
    """

    at: float
    fds: Mapping[int, int]
    room: Mapping[str, int]
    because: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class News:
    """What the descriptors of each process point to that were not there when it was first seen: counts, by pid and target."""

    at: float
    targets: Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader should know: what could not be read, and why."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The watch is over; where this is missing, it was killed."""

    at: float
    because: str


Event: TypeAlias = Began | Sample | Came | Limits | News | Note | Ended


def to_json(event: Event) -> dict[str, Any]:
    """Plain JSON types, short, since a night has many; `from_json` gives the event back equal."""
    return {"at": event.at, **_WRITERS[type(event)](event)}


def from_json(data: object) -> Event:
    """Read what `to_json` wrote, after any trip through a JSON encoder.

    Raises:
        EventError: It is no event, or one of another version.
    """
    if not isinstance(data, dict):
        raise EventError(f"an event is a JSON object, not {type(data).__name__}")
    key = next((key for key in _READERS if key in data), None)
    if key is None:
        raise EventError(f"no event: none of {', '.join(_READERS)} is there")
    try:
        return _READERS[key](float(data["at"]), data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, EventError):
            raise
        raise EventError(f"no event: {type(error).__name__}: {error}") from error


def _write_sample(sample: Sample) -> dict[str, Any]:
    processes = {str(pid): [one.fds, one.threads, one.rss] for pid, one in sample.processes.items()}
    line: dict[str, Any] = {"totals": dict(sample.totals), "processes": processes}
    if sample.step is not None:
        line["step"] = sample.step
    if sample.gone:
        line["gone"] = list(sample.gone)
    return line


def _read_sample(at: float, data: Mapping[str, Any]) -> Sample:
    step = data.get("step")
    totals = {str(name): int(value) for name, value in data["totals"].items()}
    processes = {int(pid): Reading(*map(int, values)) for pid, values in data.get("processes", {}).items()}
    gone = tuple(map(int, data.get("gone", ())))
    return Sample(at, None if step is None else int(step), totals, processes, gone)


def _write_limits(limits: Limits) -> dict[str, Any]:
    return {"limits": _by_pid(limits.fds), "room": dict(limits.room), "because": dict(limits.because)}


def _read_limits(at: float, data: Mapping[str, Any]) -> Limits:
    room = {str(name): int(value) for name, value in data["room"].items()}
    return Limits(at, _numbers(data["limits"]), room, {str(name): str(text) for name, text in data["because"].items()})


def _read_began(at: float, data: Mapping[str, Any]) -> Began:
    if data["watch"] != SCHEMA:
        raise EventError(f"schema {data['watch']!r} is not {SCHEMA}: written by another version")
    return Began(at, int(data["root"]), str(data["command"]), float(data["interval"]))


def _by_pid(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(pid): value for pid, value in values.items()}


def _numbers(values: Mapping[str, Any]) -> dict[int, int]:
    return {int(pid): int(value) for pid, value in values.items()}


_WRITERS: Final[Mapping[type[Event], Callable[[Any], dict[str, Any]]]] = {
    Began: lambda one: {"watch": SCHEMA, "root": one.root, "command": one.command, "interval": one.interval},
    Sample: _write_sample,
    Came: lambda one: {"came": _by_pid(one.names)},
    Limits: _write_limits,
    News: lambda one: {"new": {str(pid): dict(counts) for pid, counts in one.targets.items()}},
    Note: lambda one: {"note": one.text},
    Ended: lambda one: {"ended": one.because},
}
# By the key that only this kind of event has.
_READERS: Final[Mapping[str, Callable[[float, Mapping[str, Any]], Event]]] = {
    "watch": _read_began,
    "totals": _read_sample,
    "came": lambda at, data: Came(at, {int(pid): str(name) for pid, name in data["came"].items()}),
    "limits": _read_limits,
    "new": lambda at, data: News(
        at, {int(pid): {str(target): int(n) for target, n in found.items()} for pid, found in data["new"].items()}
    ),
    "note": lambda at, data: Note(at, str(data["note"])),
    "ended": lambda at, data: Ended(at, str(data["ended"])),
}
