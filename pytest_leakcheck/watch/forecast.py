"""Forecast when a counter will reach its limit, based on its past readings. Pure functions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.judge.growth import detection_floor, growth
from pytest_leakcheck.judge.judge_series import SCARCE
from pytest_leakcheck.model.resources import (
    CHILDREN,
    DESCRIPTORS,
    RESIDENT,
    Resource,
    find_resource,
)
from pytest_leakcheck.watch.history import History, Track, resource_name
from pytest_leakcheck.watch.slope import FEWEST, Slope, fit_slope

State: TypeAlias = Literal["grows", "flat", "unsure"]

# With fewer intervals between readings, the state is ``unsure``. Thirteen intervals without growth
# exclude, with 99 % confidence, a leak that occurs at random in one of three intervals
# (`judge_series.SCARCE`).
_MIN_INTERVALS: Final = 13
# Readings are multiplied by this before the search for the detection floor, which tries whole
# numbers only: it would find no floor below one per reading.
_FLOOR_SCALE: Final = 64
_MAX_PROCESSES: Final = 8


@dataclass(frozen=True, slots=True)
class Outlook:
    """The forecast for one counter.

    Attributes:
        now: The last reading that the forecast uses; ``gained`` is the growth from the first
            reading to it.
        state: ``grows`` if `judge.growth` finds growth and the slope is above 0; ``flat`` if it
            finds none, or the interval of the slope begins at or below 0; ``unsure`` otherwise, and
            always with too few readings.
        axis: The unit of x for `slope`, `left` and `floor`: a step if the steps of the training are
            known.
        slope: Of the later half, which cannot be warm-up; None with too few readings. Time 0 is the
            first reading.
        pace: Seconds per unit of the axis.
        left: How much of the axis is left until a limit: expected, shortest and longest (may be
            infinite). Empty if the counter does not grow, or no limit is known. ``limit`` says what
            sets the limit.
        floor: If ``flat``, the smallest sustained growth that this watch would have detected; None
            if not determined.
    """

    resource: Resource
    now: int
    gained: int
    state: State = "unsure"
    axis: Literal["step", "second"] = "second"
    slope: Slope | None = None
    pace: float = 1.0
    left: tuple[float, ...] = ()
    limit: str = ""
    floor: float | None = None


def outlooks(history: History) -> dict[str, Outlook]:
    """Return forecasts by name of the counter: of all totals, and of the processes that grew most.

    The total of ``fd`` has the limit of the process that will run out of descriptors first. After
    the end of the watch, totals have floors, and processes that have ended count.
    """
    until = _end_of_work(history)
    totals = {
        name: outlook_of(name, track, history.limits.get(name), floor=not history.live, until=until)
        for name, track in history.tracks.items()
        if " of " not in name
    }
    limits = {name: limit for name, limit in history.limits.items() if name in history.values}
    grown = [*_most_grown(history, DESCRIPTORS), *_most_grown(history, RESIDENT)]
    processes = {
        name: outlook_of(name, history.tracks[name], limits.get(name), until=until)
        for name in grown
    }
    ends = {
        name: outlook.left[0] * outlook.pace
        for name, outlook in processes.items()
        if outlook.left and outlook.resource.scarce
    }
    if ends and DESCRIPTORS in totals:
        name = min(ends, key=ends.__getitem__)
        first, fd = processes[name], totals[DESCRIPTORS]
        left = tuple(one * first.pace / fd.pace for one in first.left)
        limit = f"{name.removeprefix(f'{DESCRIPTORS} of ')}, {first.limit}"
        totals[DESCRIPTORS] = replace(fd, left=left, limit=limit)
    # A single process would only repeat the totals.
    shown = {name: one for name, one in processes.items() if one.state != "flat"}
    return totals | shown if len(history.tracks) - len(totals) > 2 else totals


def outlook_of(
    name: str,
    track: Track,
    limit: tuple[int, str] | None = None,
    *,
    floor: bool = False,
    until: float = math.inf,
) -> Outlook:
    """Return the forecast for one counter, from readings up to ``until`` (since the epoch).

    A floor takes up to 0.1 s.
    """
    end = bisect_right(track.at, until)
    resource, now = find_resource(resource_name(name)), track.values[max(0, end - 1)]
    found = Outlook(resource, now, now - track.values[0])
    window = Track(track.at[:end], (), track.values[:end])
    known = bisect_left(track.steps, 0, 0, end)
    if end - known > FEWEST and track.steps[end - 1] > track.steps[known]:
        # Before the first step, training imports modules and starts workers.
        window = track.part(known, end)
    late = window.part(len(window.at) // 2, len(window.at))
    slope = fit_slope(late.steps, late.values)
    if slope is not None:
        pace = (late.at[-1] - late.at[0]) / (late.steps[-1] - late.steps[0])
        found = replace(found, axis="step", pace=pace or 1.0)
    else:
        # From the first reading: seconds since the epoch are so large that a median of differences
        # loses precision.
        slope = fit_slope([at - track.at[0] for at in late.at], late.values)
    found = replace(found, slope=slope, state=_growth_state(window, resource, slope))
    if found.state == "grows" and slope is not None and limit is not None:
        room = max(0, limit[0] - found.now)
        longest = room / slope.low if slope.low > 0 else math.inf
        return replace(found, left=(room / slope.value, room / slope.high, longest), limit=limit[1])
    return replace(found, floor=_floor(window, found)) if floor and found.state == "flat" else found


def _most_grown(history: History, resource: str) -> list[str]:
    """Return the counters of processes in which a resource has grown most, largest growth first."""
    gains = {
        name: track.values[-1] - track.values[0]
        for name, track in history.tracks.items()
        if name.startswith(f"{resource} of ") and (name in history.values or not history.live)
    }
    return sorted((name for name in gains if gains[name] > 0), key=lambda name: -gains[name])[
        :_MAX_PROCESSES
    ]


def _end_of_work(history: History) -> float:
    """Return the time of the last reading before the workers end."""
    # Their end must not look as if growth had stopped. The last readings are ignored if they have
    # fewer processes than the median of the later half; and those right before, while descriptors
    # fall, because the kernel closes the descriptors of a process before the process is gone.
    children, fds = history.tracks.get(CHILDREN), history.tracks.get(DESCRIPTORS)
    if children is None or fds is None:
        return math.inf
    usual = median(children.values[len(children.at) // 2 :])
    last = max(at for at, count in enumerate(children.values) if count >= usual)
    if last < len(children.at) - 1 or history.ended:
        while 0 < last < len(fds.at) and fds.values[last] < fds.values[last - 1]:
            last -= 1
    return children.at[last]


def _growth_state(window: Track, resource: Resource, slope: Slope | None) -> State:
    if slope is None or len(window.at) <= _MIN_INTERVALS:
        return "unsure"
    grown = growth(window.values, resource.tolerance, SCARCE.leak)
    if grown.state == "undecided" and (steps := window.steps):
        # A training that becomes slower grows less per reading, not per step. The last reading up
        # to each step, and not a minimum: the fewer readings a minimum has, the higher it is.
        stride = max(1, math.ceil((steps[-1] - steps[0] + 1) / len(set(steps))))
        evenly = [
            window.values[bisect_right(steps, step) - 1]
            for step in range(steps[0], steps[-1] + 1, stride)
        ]
        if len(evenly) > _MIN_INTERVALS:
            grown = growth(evenly, resource.tolerance, SCARCE.leak)
    if grown.state == "growing" and slope.value > 0:
        return "grows"
    # A training run opens and closes descriptors all the time, so a counter is seldom as constant
    # as `judge.growth` requires for ``flat``. A slope whose interval begins at or below 0 is
    # therefore enough.
    return "flat" if grown.state == "flat" or slope.low <= 0 else "unsure"


def _floor(window: Track, found: Outlook) -> float | None:
    """Return `Outlook.floor`, found by trial as for a noisy counter."""
    # Descriptors come and go all the time.
    resource = found.resource
    grain = resource.grain * (_FLOOR_SCALE if resource.unit == "count" else 1)
    counter = replace(resource, grain=grain)
    values = [value * _FLOOR_SCALE for value in window.values]
    least = detection_floor(values, counter, resource.tolerance * _FLOOR_SCALE, SCARCE.leak)
    seconds = (window.at[-1] - window.at[0]) / (len(window.at) - 1)
    return (
        least / _FLOOR_SCALE * found.pace / seconds if least is not None and seconds > 0 else None
    )
