"""A watch in words: what the table, the lines and the page say alike. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.watch.forecast import Outlook, first_to_end, outlooks, process_outlooks
from pytest_leakcheck.watch.history import History

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
# Beyond this nobody waits: ten years.
_NEVER: Final = 10 * 365 * 86400
_MOST_TARGETS: Final = 5
_MOST_FDS: Final = 8
_MOST_MEMORIES: Final = 3
_LONG: Final = 60


@dataclass(frozen=True, slots=True)
class Row:
    """One counter in words: its name, its reading now, what it gained, how it grows, and when that ends."""

    name: str
    now: str
    gained: str
    growth: str
    ends: str


def title(history: History) -> str:
    """What is watched, since when, and at which step it is."""
    step = "" if history.steps is None else f", step {history.steps:,}"
    return (
        f"{history.began.root} {history.began.command}: {duration(history.seconds)}, {history.samples:,} samples{step}"
    )


def rows(history: History, *, floor: bool = False) -> list[Row]:
    """The totals of the tree."""
    end = first_to_end(history)
    found = []
    for name, one in outlooks(history, floor=floor).items():
        ends = ends_text(one)
        if name == "fd" and end is not None:
            pid, its = end
            ends = f"{ends_text(its)}: {history.names.get(pid, 'process')} {pid}, limit {history.limits[pid]:,}"
        elif ends and name in history.because:
            ends += f": {history.because[name]}"
        found.append(Row(name, amount(one.now, one.unit), signed(one.gained, one.unit), growth_text(one), ends))
    return found


def process_rows(history: History) -> list[Row]:
    """The processes that gained most descriptors and memory; nothing where there is only one."""
    if len(history.processes) < 2:
        return []
    return [
        Row(
            f"{name} of {history.names.get(pid, 'root')} {pid}",
            amount(one.now, one.unit),
            signed(one.gained, one.unit),
            growth_text(one),
            ends_text(one),
        )
        for name, most in (("fd", _MOST_FDS), ("rss", _MOST_MEMORIES))
        for pid, one in process_outlooks(history, name, most).items()
    ]


def lines(history: History) -> Iterator[str]:
    """The whole state as plain lines."""
    yield title(history)
    for row in rows(history):
        ends = f"; ends in {row.ends}" if row.ends else ""
        yield f"  {row.name:<8}{row.now:>10}  {row.gained:>10}  {row.growth}{ends}"


def last_lines(history: History) -> Iterator[str]:
    """The state at the end: with the floor of what did not grow, the processes, and what is new."""
    yield title(history)
    for row in rows(history, floor=True):
        ends = f"; ends in {row.ends}" if row.ends else ""
        yield f"  {row.name:<8}{row.now:>10}  {row.gained:>10}  {row.growth}{ends}"
    for row in process_rows(history):
        ends = f"; ends in {row.ends}" if row.ends else ""
        yield f"  {row.name}: {row.now}, {row.gained}, {row.growth}{ends}"
    for text in new_lines(history):
        yield f"  new     {text}"
    for text in history.notes:
        yield f"  note    {text}"


def new_lines(history: History, most: int = _MOST_TARGETS) -> list[str]:
    """The new descriptors by target, most frequent first, with the moment of the look where it was not the last."""
    counts = history.new_targets()
    early = history.last - history.looked > 2 * history.began.interval
    when = f" after {duration(history.looked - history.first)}" if early else ""
    told = [f"{count:,} × {_short(target)}{when}" for target, count in counts.most_common(most)]
    more = len(counts) - most
    return [*told, f"and {more:,} targets more"] if more > 0 else told


def growth_text(one: Outlook) -> str:
    """How it grows, per step where there are steps, else per second."""
    slope, axis = (one.per_step, "step") if one.per_step is not None else (one.per_second, "second")
    if one.state == "flat":
        floor = one.floor_per_step if one.per_step is not None else one.floor
        return "no growth seen" + (f"; would have caught ≥ {rate(floor, one.unit)} per {axis}" if floor else "")
    if slope is None:
        return "too early to tell"
    interval = f"{rate(slope.low, one.unit)} to {rate(slope.high, one.unit)}"
    text = f"{'+' if slope.value >= 0 else ''}{rate(slope.value, one.unit)} per {axis} ({interval})"
    return text if one.state == "grows" else f"not proved: {text}"


def ends_text(one: Outlook) -> str:
    """When its room is used up; empty where it does not grow, or nobody lives to see it."""
    seconds = one.expected_seconds
    if seconds is None or seconds > _NEVER:
        return ""
    text = f"≈ {duration(seconds)}"
    if (left := one.seconds_left) is not None and left[1] < _NEVER:
        text += f" ({duration(left[0])} to {duration(left[1])})"
    steps = one.expected_steps
    return f"{text}, {steps:,.0f} steps" if steps is not None and math.isfinite(steps) else text


def duration(seconds: float) -> str:
    """Two units at most: ``3 min 20 s``, ``2 h 5 min``, ``4.2 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    left = round(seconds)
    parts: list[str] = []
    for size, name in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size} {name}")
            left %= size
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def amount(value: float, unit: Unit) -> str:
    return f"{value:,}" if unit == "count" else format_amount(value, "bytes")


def signed(value: float, unit: Unit) -> str:
    return f"{'+' if value >= 0 else ''}{amount(value, unit)}"


def rate(value: float, unit: Unit) -> str:
    """Per step or second; of things, two digits where there is less than one."""
    if unit == "bytes":
        return format_amount(value, "bytes")
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def _short(target: str) -> str:
    return target if len(target) <= _LONG else f"…{target[-_LONG + 1 :]}"
