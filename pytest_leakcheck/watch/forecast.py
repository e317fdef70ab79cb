"""A counter's track and its limit in, what is to be expected out. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.judge.detection_floor import detection_floor
from pytest_leakcheck.judge.growth import growth
from pytest_leakcheck.judge.judge_series import RETAINED, SCARCE
from pytest_leakcheck.judge.slope import FEWEST, Slope, fit_slope
from pytest_leakcheck.model.resources import Resource, find_resource
from pytest_leakcheck.model.units import Unit
from pytest_leakcheck.watch.history import History, Track

State: TypeAlias = Literal["grows", "flat", "unsure"]

# Thirteen readings that stood still exclude a leak in every third of them at 99 % (`judge.SCARCE`).
_FEWEST: Final = 13
# A floor is sought in parts of one: readings a second apart would else tell of no leak slower than one per second.
_PARTS: Final = 64


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a track that is judged.

    Attributes:
        at: Seconds since the epoch.
        steps: As many; empty where the steps are not known, or do not go on.
        values: As many.
    """

    at: Sequence[float]
    steps: Sequence[int]
    values: Sequence[int]

    @classmethod
    def of(cls, track: Track, until: float = math.inf) -> Window:
        """All of it up to a moment; -1 in place of a step that was not known yet."""
        end = bisect_right(track.at, until)
        return cls(track.at[:end], track.steps[:end], track.values[:end])

    def since_first_step(self) -> Window:
        """Without what comes before the first step, where there are steps: a training imports and starts its workers first."""
        known = bisect_left(self.steps, 0) if len(self.steps) else 0
        steps = self.steps[known:]
        if len(steps) > FEWEST and steps[-1] > steps[0]:
            return Window(self.at[known:], steps, self.values[known:])
        return Window(self.at, (), self.values)

    def later_half(self) -> Window:
        """The half of that which cannot be warm-up."""
        since = self.since_first_step()
        half = len(since.at) // 2
        return Window(since.at[half:], since.steps[half:], since.values[half:])


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to be expected of one counter.

    Attributes:
        name: ``fd``, ``rss``, ``vram:0``.
        unit: What it counts.
        now: Its last reading.
        gained: Since the first.
        state: ``grows`` by the record test of `judge.growth`; ``flat`` where no growth is seen: it stands still, or the interval of its
            slope holds 0; ``unsure`` while neither is so.
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
    def expected_seconds(self) -> float | None:
        """The time until the room is used up, by the slope itself."""
        return _expected(self.room, self.per_second) if self.state == "grows" else None

    @property
    def expected_steps(self) -> float | None:
        """The same in steps."""
        return _expected(self.room, self.per_step) if self.state == "grows" else None


def outlook_of(
    name: str, track: Track, room: int | None = None, *, floor: bool = False, until: float = math.inf
) -> Outlook:
    """Judge one track.

    Args:
        name: Of the counter; what follows a colon is no part of the resource.
        track: Its readings.
        room: How much may be added to its last reading.
        floor: Look for the floor, too, which takes up to a tenth of a second.
        until: Readings after this moment are left out, in seconds since the epoch.
    """
    resource = find_resource(name.partition(":")[0])
    window = Window.of(track, until)
    values = window.values
    if len(values) < 2:
        return Outlook(name, resource.unit, track.last, 0, "unsure", room=room)
    late = window.later_half()
    # Time is counted from 0 on: seconds since the epoch have no digits left for a median of differences.
    per_second = fit_slope([moment - late.at[0] for moment in late.at], late.values)
    per_step = fit_slope(late.steps, late.values) if late.steps else None
    state = _state(window.since_first_step().values, resource, per_step or per_second)
    found = Outlook(name, resource.unit, values[-1], values[-1] - values[0], state, per_second, per_step, room)
    if floor and state == "flat":
        return _with_floor(found, window.since_first_step(), resource)
    return found


def outlooks(history: History, *, floor: bool = False) -> dict[str, Outlook]:
    """All totals. The total of descriptors has no limit of its own: `first_to_end` knows those of the processes."""
    until = end_of_work(history)
    return {
        name: outlook_of(name, track, history.room.get(name), floor=floor, until=until)
        for name, track in history.totals.items()
    }


def end_of_work(history: History) -> float:
    """The moment of the last reading that is judged.

    When a training ends its workers end first, and what they held is given back: readings at the end with fewer processes than
    most of the later half has are no growth that came to a rest.
    """
    track = history.totals.get("process")
    if track is None or not len(track.values):
        return math.inf
    usual = median(track.values[len(track.values) // 2 :])
    return max((at for at, count in zip(track.at, track.values, strict=True) if count >= usual), default=math.inf)


def process_outlooks(history: History, name: str = "fd", most: int = 8) -> dict[int, Outlook]:
    """The processes that have gained most of ``fd`` or ``rss``, the most first: of those that live, or at the end of all."""
    gains = {
        pid: tracks[name].last - tracks[name].values[0]
        for pid, tracks in history.processes.items()
        if (pid in history.alive or history.ended) and len(tracks[name].values)
    }
    chosen = sorted((pid for pid in gains if gains[pid] > 0), key=lambda pid: -gains[pid])[:most]
    return {pid: outlook_of(name, history.processes[pid][name], _room(history, pid, name)) for pid in chosen}


def first_to_end(history: History) -> tuple[int, Outlook] | None:
    """The process that will run out of descriptors first, where one will."""
    ends = [(pid, one) for pid, one in process_outlooks(history).items() if one.expected_seconds is not None]
    return min(ends, key=lambda pair: pair[1].expected_seconds or 0.0, default=None)


def _room(history: History, pid: int, name: str) -> int | None:
    """Memory has no limit of one process."""
    limit = history.limits.get(pid) if name == "fd" and pid in history.alive else None
    return None if limit is None else max(0, limit - history.processes[pid]["fd"].last)


def _state(values: Sequence[int], resource: Resource, slope: Slope | None) -> State:
    profile = SCARCE if resource.scarce else RETAINED
    if slope is None or len(values) <= _FEWEST:
        return "unsure"
    grown = growth(values, resource.tolerance, profile.leak)
    if grown.state == "growing" and slope.value > 0:
        return "grows"
    # In a training under way descriptors come and go, so that a counter seldom stands as still as `judge.growth` asks for.
    return "flat" if grown.state == "flat" or slope.low <= 0 else "unsure"


def _with_floor(found: Outlook, window: Window, resource: Resource) -> Outlook:
    """By trial, as for a counter with noise: in a training under way descriptors come and go."""
    values = [value * _PARTS for value in window.values]
    grain = resource.grain * _PARTS if resource.unit == "count" else resource.grain
    counter = replace(resource, scarce=False, grain=grain)
    profile = SCARCE if resource.scarce else RETAINED
    least = detection_floor(values, counter, resource.tolerance * _PARTS, profile.leak, quiet=0)
    if least is None:
        return found
    per_reading = least / _PARTS
    readings = len(window.at) - 1
    seconds = (window.at[-1] - window.at[0]) / readings
    late = window.later_half()
    steps = (late.steps[-1] - late.steps[0]) / (len(late.steps) - 1) if late.steps else 0
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
