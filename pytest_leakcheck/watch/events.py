"""Define the events of a watch and their JSON form, each one line of the ledger (the file that records a watch).

The time of an event (``at``) is in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.decoding import DecodeError, decode, encode

# Version of the ledger format; `from_json` rejects a watch that was written in another version.
SCHEMA: Final = 1


class EventError(LeakcheckError, ValueError):
    """A JSON value that is not an event of this schema."""


@dataclass(frozen=True, slots=True)
class Began:
    """The start of a watch of the process ``root`` and its descendants; a ledger may hold several watches.

    ``interval`` is in seconds. A `Watcher` samples only when a training step ends, so longer steps delay its samples.
    """

    at: float
    root: int
    command: str
    interval: float


class Reading(NamedTuple):
    """The counters of one process; a named tuple, because a frozen dataclass takes a microsecond longer to create.

    ``fds`` is -1 without the permission to read them. ``rss`` is anonymous resident memory in bytes, without pages of
    files or shared memory; outside Linux, all resident memory.
    """

    fds: int
    threads: int
    rss: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All counters at one moment.

    Attributes:
        step: Step of the training; None if it is not known.
        totals: Of the whole tree, by name: ``fd``, ``thread``, ``process``, ``rss``, and ``vram:N`` for device N.
        processes: Readings by PID; a ledger has only those of processes that have changed.
        gone: PIDs of the processes that have ended since the last sample.
    """

    at: float
    step: int | None
    totals: Mapping[str, int]
    processes: Mapping[int, Reading] = field(default_factory=dict)
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Came:
    """New processes, which the watch samples from now on: their names by PID."""

    at: float
    names: Mapping[int, str] = field(metadata={"key": "came"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the processes.

    Attributes:
        fds: Soft RLIMIT_NOFILE by PID, for processes that are new or whose limit has changed.
        room: Bytes that may still be added to ``rss`` and ``vram:N`` before a limit is reached, by name.
        because: What sets that limit, as text, by the same names.
    """

    at: float
    fds: Mapping[int, int] = field(metadata={"key": "limits"})
    room: Mapping[str, int]
    because: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class News:
    """Descriptors opened since the watch first saw the process: numbers by PID and target (such as a path)."""

    at: float
    targets: Mapping[int, Mapping[str, int]] = field(metadata={"key": "new"})


@dataclass(frozen=True, slots=True)
class Note:
    """A remark for the reader, such as what could not be read, and why."""

    at: float
    text: str = field(metadata={"key": "note"})


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a watch, and why it ended. A watch without this event was killed, or still runs."""

    at: float
    because: str = field(metadata={"key": "ended"})


Event: TypeAlias = Began | Sample | Came | Limits | News | Note | Ended


# The type of an event, by the JSON key that only events of that type have.
_EVENT_TYPES: Final[Mapping[str, type[Event]]] = {
    "watch": Began,
    "totals": Sample,
    "came": Came,
    "limits": Limits,
    "new": News,
    "note": Note,
    "ended": Ended,
}


def to_json(event: Event) -> dict[str, Any]:
    """Convert an event to plain JSON types; the form is compact, because the watch of one night has many events."""
    if isinstance(event, Sample):
        return _sample_to_json(event)
    data: dict[str, Any] = encode(event)
    return {"at": data.pop("at"), "watch": SCHEMA, **data} if isinstance(event, Began) else data


def from_json(data: object) -> Event:
    """Restore an event from the result of `to_json`; raise `EventError` if it is none, or of another version."""
    if not isinstance(data, dict):
        raise EventError(f"not an event: expected a JSON object, got {type(data).__name__}")
    kind = next((kind for key, kind in _EVENT_TYPES.items() if key in data), None)
    if kind is None:
        raise EventError(f"not an event: none of the keys {', '.join(_EVENT_TYPES)} is present")
    if kind is Began and data["watch"] != SCHEMA:
        raise EventError(f"schema {data['watch']!r} is not {SCHEMA}: written by another version")
    if kind is Sample:
        # `to_json` omits an unknown step and an empty `gone`.
        data = {"step": None, "processes": {}, "gone": (), **data}
    try:
        return decode(kind, data)
    except DecodeError as error:
        raise EventError(f"not an event: {error}") from None


def _sample_to_json(sample: Sample) -> dict[str, Any]:
    line: dict[str, Any] = {"at": sample.at, "totals": dict(sample.totals), "processes": sample.processes}
    if sample.step is not None:
        line["step"] = sample.step
    if sample.gone:
        line["gone"] = sample.gone
    return line
