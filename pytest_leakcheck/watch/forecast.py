"""Forecast when a counter will reach its limit, based on its past readings. Pure functions."""

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
from pytest_leakcheck.model.resources import CHILDREN, DESCRIPTORS, Resource, find_resource
from pytest_leakcheck.model.units import Unit
from pytest_leakcheck.watch.history import History, Track

State: TypeAlias = Literal["grows", "flat", "unsure"]

# With fewer intervals between readings, the state is ``unsure``. Thirteen intervals without growth exclude, with 99 %
# confidence, a leak that occurs at random in one of three intervals (`judge_series.SCARCE`).
_MIN_INTERVALS: Final = 13
# Readings are multiplied by this before the search for the detection floor (`Outlook.floor`). The search tries whole
# numbers only. With readings a second apart, it would otherwise find no floor below one per second.
_FLOOR_SCALE: Final = 64


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a `Track` (the readings of one counter) that a forecast uses.

    ``at`` is in seconds since the epoch. ``steps`` are -1 where unknown; `since_first_step` leaves them empty if too
    few are known or they do not advance.
    """

    at: Sequence[float]
    steps: Sequence[int]
    values: Sequence[int]

    @classmethod
    def of(cls, track: Track, until: float = math.inf) -> Window:
        """Return the readings of a track up to the time `until`."""
        end = bisect_right(track.at, until)
        return cls(track.at[:end], track.steps[:end], track.values[:end])

    def since_first_step(self) -> Window:
        """Return the readings from the first known step on; before it, training imports modules and starts workers.

        If there are too few steps or they do not advance, return all readings, without steps.
        """
        known = bisect_left(self.steps, 0) if len(self.steps) else 0
        steps = self.steps[known:]
        if len(steps) > FEWEST and steps[-1] > steps[0]:
            return Window(self.at[known:], steps, self.values[known:])
        return Window(self.at, (), self.values)

    def evenly(self) -> Window:
        """Return one reading per number of steps, so that they are equally far apart; needs steps (`since_first_step`).

        A training run that becomes slower grows less per reading, although not less per step.
        """
        known = len(set(self.steps))
        stride = max(1, math.ceil((self.steps[-1] - self.steps[0] + 1) / known))
        # The last reading up to each step, and not a minimum: the fewer readings a minimum has, the higher it is.
        chosen = [bisect_right(self.steps, step) - 1 for step in range(self.steps[0], self.steps[-1] + 1, stride)]
        return Window([self.at[i] for i in chosen], [self.steps[i] for i in chosen], [self.values[i] for i in chosen])

    def later_half(self) -> Window:
        """Return the later half of `since_first_step`, which cannot be warm-up."""
        since = self.since_first_step()
        half = len(since.at) // 2
        return Window(since.at[half:], since.steps[half:], since.values[half:])


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast for one counter.

    Attributes:
        now: The last reading that the forecast uses.
        gained: Growth from the first reading to `now`.
        state: ``grows`` if `judge.growth` finds growth and the slope is above 0. ``flat`` if `judge.growth` finds the
            counter flat, or the confidence interval of the slope begins at or below 0. ``unsure`` otherwise, and always
            with too few readings.
        per_second: Slope over `Window.later_half`; None if there are too few readings.
        per_step: The same slope per step; None if the steps are not known.
        room: How much the counter may still grow before its limit; None if there is no limit or it is not known.
        floor: If ``flat``, the smallest sustained growth per second that this watch would have detected; None
            otherwise, or if it was not determined.
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
        """Seconds until the room is used up, by the confidence interval: shortest, and longest (may be infinite)."""
        return _bounds_until_full(self.room, self.per_second) if self.state == "grows" else None

    @property
    def expected_seconds(self) -> float | None:
        """Expected seconds until the room is used up; None if the counter does not grow or its room is not known."""
        return _expected_until_full(self.room, self.per_second) if self.state == "grows" else None

    @property
    def expected_steps(self) -> float | None:
        """Expected steps until the room is used up; None also if the steps are not known."""
        return _expected_until_full(self.room, self.per_step) if self.state == "grows" else None


def outlook_of(
    name: str, track: Track, room: int | None = None, *, floor: bool = False, until: float = math.inf
) -> Outlook:
    """Return the forecast for one counter; the part of its name before a colon names the resource.

    ``room`` is what may be added to the last reading; None if there is no limit or it is not known. The ``floor`` takes
    up to a tenth of a second. Readings after ``until`` (seconds since the epoch) are ignored.
    """
    resource = find_resource(name.partition(":")[0])
    window = Window.of(track, until)
    values = window.values
    if len(values) < 2:
        return Outlook(name, resource.unit, track.last, 0, "unsure", room=room)
    late = window.later_half()
    # Times start at 0: seconds since the epoch are so large that a median of differences would lose precision.
    per_second = fit_slope([moment - late.at[0] for moment in late.at], late.values)
    per_step = fit_slope(late.steps, late.values) if late.steps else None
    state = _growth_state(window.since_first_step(), resource, per_step or per_second)
    found = Outlook(name, resource.unit, values[-1], values[-1] - values[0], state, per_second, per_step, room)
    if floor and state == "flat":
        return _add_floor(found, window.since_first_step(), resource)
    return found


def outlooks(history: History, *, floor: bool = False) -> dict[str, Outlook]:
    """Return the forecasts of all totals by name; ``fd`` has no room, only limits per process (`first_to_end`)."""
    until = end_of_work(history)
    return {
        name: outlook_of(name, track, history.room.get(name), floor=floor, until=until)
        for name, track in history.totals.items()
    }


def end_of_work(history: History) -> float:
    """Return the time of the last reading that forecasts use; infinite if there are no readings.

    When training ends, its workers end first and release what they held, which must not look as if growth had stopped.
    So the last readings are ignored if they have fewer processes than the median of the later half; and those right
    before, while descriptors fall, because the kernel closes the descriptors of a process before the process is gone.
    """
    track, fds = history.totals.get(CHILDREN), history.totals.get(DESCRIPTORS)
    if track is None or not len(track.values):
        return math.inf
    usual = median(track.values[len(track.values) // 2 :])
    last = max(at for at, count in enumerate(track.values) if count >= usual)
    if last == len(track.values) - 1 and not history.ended:
        return track.at[last]
    while fds is not None and 0 < last < len(fds.values) and fds.values[last] < fds.values[last - 1]:
        last -= 1
    return track.at[last]


def process_outlooks(history: History, name: str = DESCRIPTORS, most: int = 8) -> dict[int, Outlook]:
    """Return forecasts by PID for the processes whose ``fd`` or ``rss`` has grown most, the largest growth first.

    Only live processes are considered; after the end of the watch, all that the history has kept.
    """
    gains = {
        pid: tracks[name].last - tracks[name].values[0]
        for pid, tracks in history.processes.items()
        if (pid in history.alive or history.ended) and len(tracks[name].values)
    }
    chosen = sorted((pid for pid in gains if gains[pid] > 0), key=lambda pid: -gains[pid])[:most]
    return {pid: outlook_of(name, history.processes[pid][name], _process_room(history, pid, name)) for pid in chosen}


def first_to_end(history: History) -> tuple[int, Outlook] | None:
    """Return the process that is expected to run out of descriptors first, and its forecast; None if none is."""
    ends = [(pid, one) for pid, one in process_outlooks(history).items() if one.expected_seconds is not None]
    return min(ends, key=lambda pair: pair[1].expected_seconds or 0.0, default=None)


def _process_room(history: History, pid: int, name: str) -> int | None:
    """Return how many descriptors a live process may still open; None if unknown, and for ``rss`` (no limit)."""
    limit = history.limits.get(pid) if name == DESCRIPTORS and pid in history.alive else None
    return None if limit is None else max(0, limit - history.processes[pid][DESCRIPTORS].last)


def _growth_state(window: Window, resource: Resource, slope: Slope | None) -> State:
    profile = SCARCE if resource.scarce else RETAINED
    if slope is None or len(window.values) <= _MIN_INTERVALS:
        return "unsure"
    grown = growth(window.values, resource.tolerance, profile.leak)
    if grown.state == "undecided" and window.steps and len(evenly := window.evenly().values) > _MIN_INTERVALS:
        grown = growth(evenly, resource.tolerance, profile.leak)
    if grown.state == "growing" and slope.value > 0:
        return "grows"
    # A training run opens and closes descriptors all the time, so a counter is seldom as constant as `judge.growth`
    # requires for ``flat``. A slope whose interval begins at or below 0 is therefore enough.
    return "flat" if grown.state == "flat" or slope.low <= 0 else "unsure"


def _add_floor(found: Outlook, window: Window, resource: Resource) -> Outlook:
    """Add the detection floor, found by trial as for a noisy counter, because descriptors come and go all the time."""
    values = [value * _FLOOR_SCALE for value in window.values]
    grain = resource.grain * _FLOOR_SCALE if resource.unit == "count" else resource.grain
    counter = replace(resource, scarce=False, grain=grain)
    profile = SCARCE if resource.scarce else RETAINED
    least = detection_floor(values, counter, resource.tolerance * _FLOOR_SCALE, profile.leak, quiet=0)
    if least is None:
        return found
    per_reading = least / _FLOOR_SCALE
    readings = len(window.at) - 1
    seconds = (window.at[-1] - window.at[0]) / readings
    late = window.later_half()
    steps = (late.steps[-1] - late.steps[0]) / (len(late.steps) - 1) if late.steps else 0
    return replace(
        found,
        floor=per_reading / seconds if seconds > 0 else None,
        floor_per_step=per_reading / steps if steps > 0 else None,
    )


def _expected_until_full(room: int | None, slope: Slope | None) -> float | None:
    return room / slope.value if room is not None and slope is not None and slope.value > 0 else None


def _bounds_until_full(room: int | None, slope: Slope | None) -> tuple[float, float] | None:
    if room is None or slope is None or slope.high <= 0:
        return None
    return room / slope.high, room / slope.low if slope.low > 0 else float("inf")
