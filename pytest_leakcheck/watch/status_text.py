"""Format the state of a watch as text, for the table, the plain lines and the page. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pytest_leakcheck.model.resources import DESCRIPTORS, RESIDENT
from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.report.glyphs import printable
from pytest_leakcheck.watch.forecast import Outlook, first_to_end, outlooks, process_outlooks
from pytest_leakcheck.watch.history import History

# Units of time in seconds, largest first.
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
# Ten years in seconds; longer forecasts are not shown.
_MAX_FORECAST_SECONDS: Final = 10 * 365 * 86400
_MAX_TARGETS: Final = 5
_MAX_FD_PROCESSES: Final = 8
_MAX_RSS_PROCESSES: Final = 3
_MAX_TARGET_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Row:
    """The text for one counter, of the whole tree or of one process.

    ``gained`` is since the first reading, ``growth`` is a rate; ``ends`` is empty if no limit will be reached.
    """

    name: str
    now: str
    gained: str
    growth: str
    ends: str


def title(history: History) -> str:
    """Return a line with the watched process, the duration, the number of samples, and the step."""
    step = "" if history.steps is None else f", step {history.steps:,}"
    seconds = duration(history.seconds)
    return printable(f"{history.began.root} {history.began.command}: {seconds}, {history.samples:,} samples{step}")


def rows(history: History, *, floor: bool = False) -> list[Row]:
    """Return a row for each total; with ``floor``, those without growth also show the detection floor."""
    end = first_to_end(history)
    found = []
    for name, one in outlooks(history, floor=floor).items():
        ends = ends_text(one)
        if name == DESCRIPTORS and end is not None:
            pid, its = end
            ends = f"{ends_text(its)}: {history.names.get(pid, 'process')} {pid}, ulimit -n {history.limits[pid]:,}"
        elif ends and name in history.because:
            ends += f": {history.because[name]}"
        found.append(Row(name, amount(one.now, one.unit), signed(one.gained, one.unit), growth_text(one), ends))
    return found


def process_rows(history: History) -> list[Row]:
    """Return rows for the processes that gained most descriptors and memory; none if only one process was seen."""
    if len(history.processes) < 2:
        return []
    return [
        Row(
            printable(f"{name} of {history.names.get(pid, 'root')} {pid}"),
            amount(one.now, one.unit),
            signed(one.gained, one.unit),
            growth_text(one),
            ends_text(one),
        )
        for name, most in ((DESCRIPTORS, _MAX_FD_PROCESSES), (RESIDENT, _MAX_RSS_PROCESSES))
        for pid, one in process_outlooks(history, name, most).items()
    ]


def lines(history: History) -> Iterator[str]:
    """Yield the state of the totals as plain lines."""
    yield title(history)
    for row in rows(history):
        ends = f"; runs out in {row.ends}" if row.ends else ""
        yield f"  {row.name:<8}{row.now:>10}  {row.gained:>10}  {row.growth}{ends}"


def last_lines(history: History) -> Iterator[str]:
    """Yield the final state: totals with detection floors, processes, new descriptors, and notes."""
    yield title(history)
    for row in rows(history, floor=True):
        ends = f"; runs out in {row.ends}" if row.ends else ""
        yield f"  {row.name:<8}{row.now:>10}  {row.gained:>10}  {row.growth}{ends}"
    for row in process_rows(history):
        ends = f"; runs out in {row.ends}" if row.ends else ""
        yield f"  {row.name}: {row.now}, {row.gained}, {row.growth}{ends}"
    for text in new_lines(history):
        yield f"  new     {text}"
    for text in history.notes:
        yield f"  note    {printable(text)}"


def new_lines(history: History, most: int = _MAX_TARGETS) -> list[str]:
    """Return lines for the new descriptors by target (what they refer to), most frequent first.

    If the counts were last updated more than two intervals before the last sample, each line says when that was.
    """
    counts = history.new_targets()
    early = history.last - history.looked > 2 * history.began.interval
    when = f" after {duration(history.looked - history.first)}" if early else ""
    texts = [f"{count:,} × {_shorten_target(printable(target))}{when}" for target, count in counts.most_common(most)]
    more = len(counts) - most
    return [*texts, f"and {more:,} more targets"] if more > 0 else texts


def growth_text(one: Outlook) -> str:
    """Return the growth as text, per step if the steps are known, else per second."""
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
    """Return when the counter will reach its limit; empty if not expected, not known, or in more than ten years."""
    seconds = one.expected_seconds
    if seconds is None or seconds > _MAX_FORECAST_SECONDS:
        return ""
    text = f"≈ {duration(seconds)}"
    if (left := one.seconds_left) is not None and left[1] < _MAX_FORECAST_SECONDS:
        text += f" ({duration(left[0])} to {duration(left[1])})"
    steps = one.expected_steps
    return f"{text}, {steps:,.0f} steps" if steps is not None and math.isfinite(steps) else text


def duration(seconds: float) -> str:
    """Format seconds in at most two units: ``3 min 20 s``, ``2 h 5 min``, ``4.2 s``."""
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
    """Format a reading in its unit."""
    return f"{value:,}" if unit == "count" else format_amount(value, "bytes")


def signed(value: float, unit: Unit) -> str:
    """Format a difference of readings, with a plus sign unless it is negative."""
    return f"{'+' if value >= 0 else ''}{amount(value, unit)}"


def rate(value: float, unit: Unit) -> str:
    """Format a growth rate; a count gets two decimals, or two significant digits if it is below 0.095."""
    if unit == "bytes":
        return format_amount(value, "bytes")
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def _shorten_target(target: str) -> str:
    return target if len(target) <= _MAX_TARGET_CHARACTERS else f"…{target[-_MAX_TARGET_CHARACTERS + 1 :]}"
