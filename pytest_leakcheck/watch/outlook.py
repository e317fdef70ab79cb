"""A counter's track and its limit in, what is to be expected out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.floor import detection_floor
from pytest_leakcheck.ratchet import growth
from pytest_leakcheck.resources import Resource, find_resource
from pytest_leakcheck.units import Unit
from pytest_leakcheck.verdict import RETAINED, SCARCE
from pytest_leakcheck.watch.history import History, Track
from pytest_leakcheck.watch.slope import Slope, fit_slope

State: TypeAlias = Literal["grows", "flat", "unsure"]

# Thirteen readings that stood still exclude a leak in every third of them at 99 % (`verdict.SCARCE`).
_FEWEST: Final = 13
# A floor is sought in parts of one: readings a second apart would else tell of no leak slower than one per second.
_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to be expected of one counter.

    Attributes:
        name: ``fd``, ``rss``, ``vram:0``.
        unit: What it counts.
        now: Its last reading.
        gained: Since the first.
        state: ``grows`` by the record test of `ratchet`; ``flat``; ``unsure`` while neither is proved.
        per_second: The slope over the later half of the watch; None where there are too few readings.
        per_step: The same per step, where the training tells its steps.
        room: How much may be added; None where that is not known or without end.
        floor: For ``flat``: the least sustained growth that this watch would have shown, per second.
        floor_per_step: The same per step.
    """

    name: str
    unit: Unit
    now: int
    gained: int
    state: State
    per_second: Slope | None = None
    per_step: Slope | None = None
    room: int | None = None
    floor: float | None = None
    floor_per_step: float | None = None

    @property
    def seconds_left(self) -> tuple[float, float] | None:
        """From the soonest to the latest time until the room is used up; the latest may be infinite. None where it does not grow."""
        return _left(self.room, self.per_second) if self.state == "grows" else None

    @property
    def steps_left(self) -> tuple[float, float] | None:
        """The same in steps."""
        return _left(self.room, self.per_step) if self.state == "grows" else None

    @property
    def expected_seconds(self) -> float | None:
        """The time until the room is used up, by the slope itself."""
        return _expected(self.room, self.per_second) if self.state == "grows" else None

    @property
    def expected_steps(self) -> float | None:
        """The same in steps."""
        return _expected(self.room, self.per_step) if self.state == "grows" else None


def outlook_of(name: str, track: Track, room: int | None = None, *, floor: bool = False) -> Outlook:
    """Judge one track.

    Args:
        name: Of the counter; what follows a colon is no part of the resource.
        track: Its readings.
        room: How much may be added to its last reading.
        floor: Look for the floor, too, which takes up to a tenth of a second.
    """
    resource = find_resource(name.partition(":")[0])
    values = track.values
    gained = track.last - values[0] if len(values) else 0
    if len(values) < 2:
        return Outlook(name, resource.unit, track.last, gained, "unsure", room=room)
    half = len(values) // 2
    at, late = track.at[half:], values[half:]
    # Time is counted from 0 on: seconds since the epoch have no digits left for a median of differences.
    per_second = fit_slope([moment - at[0] for moment in at], late)
    per_step = fit_slope(track.steps[half:], late) if track.counts_steps else None
    state = _state(track, resource, per_step or per_second)
    found = Outlook(name, resource.unit, track.last, gained, state, per_second, per_step, room)
    if floor and state == "flat":
        return _with_floor(found, track, resource)
    return found


def outlooks(history: History, *, floor: bool = False) -> dict[str, Outlook]:
    """All totals. The total of descriptors has no limit of its own: `first_to_end` knows those of the processes."""
    return {
        name: outlook_of(name, track, history.room.get(name), floor=floor) for name, track in history.totals.items()
    }


def process_outlooks(history: History, most: int = 8) -> dict[int, Outlook]:
    """The descriptors of the live processes that have gained most, the most first."""
    gains = {
        pid: tracks["fd"].last - tracks["fd"].values[0]
        for pid, tracks in history.processes.items()
        if pid in history.alive and len(tracks["fd"].values) and tracks["fd"].last >= 0
    }
    chosen = sorted(gains, key=lambda pid: -gains[pid])[:most]
    return {pid: outlook_of("fd", history.processes[pid]["fd"], _room(history, pid)) for pid in chosen}


def first_to_end(history: History) -> tuple[int, Outlook] | None:
    """The process that will run out of descriptors first, where one will."""
    ends = [(pid, one) for pid, one in process_outlooks(history).items() if one.expected_seconds is not None]
    return min(ends, key=lambda pair: pair[1].expected_seconds or 0.0, default=None)


def _room(history: History, pid: int) -> int | None:
    limit = history.limits.get(pid)
    return None if limit is None else max(0, limit - history.processes[pid]["fd"].last)


def _state(track: Track, resource: Resource, slope: Slope | None) -> State:
    profile = SCARCE if resource.scarce else RETAINED
    grown = growth(track.values, resource.tolerance, profile.leak)
    if grown.state == "growing" and slope is not None and slope.is_sure:
        return "grows"
    if grown.state == "flat" and len(track.values) > _FEWEST:
        return "flat"
    return "unsure"


def _with_floor(found: Outlook, track: Track, resource: Resource) -> Outlook:
    """By trial, as for a counter with noise: in a training under way descriptors come and go."""
    values = [value * _PARTS for value in track.values]
    grain = resource.grain * _PARTS if resource.unit == "count" else resource.grain
    counter = replace(resource, scarce=False, grain=grain)
    profile = SCARCE if resource.scarce else RETAINED
    least = detection_floor(values, counter, resource.tolerance * _PARTS, profile.leak, quiet=0)
    if least is None:
        return found
    per_reading = least / _PARTS
    readings = len(track.at) - 1
    seconds = (track.at[-1] - track.at[0]) / readings
    steps = (track.steps[-1] - track.steps[0]) / readings if track.counts_steps else 0
    return replace(
        found,
        floor=per_reading / seconds if seconds > 0 else None,
        floor_per_step=per_reading / steps if steps > 0 else None,
    )


def _expected(room: int | None, slope: Slope | None) -> float | None:
    return room / slope.value if room is not None and slope is not None and slope.value > 0 else None


def _left(room: int | None, slope: Slope | None) -> tuple[float, float] | None:
    if room is None or slope is None or slope.high <= 0:
        return None
    return room / slope.high, room / slope.low if slope.low > 0 else float("inf")
