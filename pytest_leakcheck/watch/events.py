"""What happens while something is watched, as values with a JSON form: a line of the ledger each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from pytest_leakcheck.model.decoding import DecodeError, decode, encode

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
    names: Mapping[int, str] = field(metadata={"key": "came"})


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
    fds: Mapping[int, int] = field(metadata={"key": "limits"})
    room: Mapping[str, int]
    because: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class News:
    """What the descriptors of each process point to that were not there when it was first seen: counts, by pid and target."""

    at: float
    targets: Mapping[int, Mapping[str, int]] = field(metadata={"key": "new"})


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader should know: what could not be read, and why."""

    at: float
    text: str = field(metadata={"key": "note"})


@dataclass(frozen=True, slots=True)
class Ended:
    """The watch is over; where this is missing, it was killed."""

    at: float
    because: str = field(metadata={"key": "ended"})


Event: TypeAlias = Began | Sample | Came | Limits | News | Note | Ended


# By the key that only this kind of event has.
_KINDS: Final[Mapping[str, type[Event]]] = {
    "watch": Began,
    "totals": Sample,
    "came": Came,
    "limits": Limits,
    "new": News,
    "note": Note,
    "ended": Ended,
}


def to_json(event: Event) -> dict[str, Any]:
    """Plain JSON types, short, since a night has many; `from_json` gives the event back equal."""
    if isinstance(event, Sample):
        return _write_sample(event)
    data: dict[str, Any] = encode(event)
    return {"at": data.pop("at"), "watch": SCHEMA, **data} if isinstance(event, Began) else data


def from_json(data: object) -> Event:
    """Read what `to_json` wrote, after any trip through a JSON encoder.

    Raises:
        EventError: It is no event, or one of another version.
    """
    if not isinstance(data, dict):
        raise EventError(f"an event is a JSON object, not {type(data).__name__}")
    kind = next((kind for key, kind in _KINDS.items() if key in data), None)
    if kind is None:
        raise EventError(f"no event: none of {', '.join(_KINDS)} is there")
    if kind is Began and data["watch"] != SCHEMA:
        raise EventError(f"schema {data['watch']!r} is not {SCHEMA}: written by another version")
    if kind is Sample:
        # What is left out of a sample is empty.
        data = {"step": None, "processes": {}, "gone": (), **data}
    try:
        return decode(kind, data)
    except DecodeError as error:
        raise EventError(f"no event: {error}") from None


def _write_sample(sample: Sample) -> dict[str, Any]:
    line: dict[str, Any] = {"at": sample.at, "totals": dict(sample.totals), "processes": sample.processes}
    if sample.step is not None:
        line["step"] = sample.step
    if sample.gone:
        line["gone"] = sample.gone
    return line
