"""Describe a watch as text for the terminal, and a ledger as a `Page` with a `Card` per watch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.report.glyphs import printable
from pytest_leakcheck.report.html.page import Card, Chart, Curve, Limit, Page, Part, Section, Tone
from pytest_leakcheck.watch.forecast import Outlook, outlooks
from pytest_leakcheck.watch.history import History, Track, read_histories

# Units of time: their seconds, and their number in the next larger unit.
_UNITS: Final = ((86400, 1 << 40, "d"), (3600, 24, "h"), (60, 60, "min"), (1, 60, "s"))
# Ten years in seconds; longer forecasts are not shown.
_MAX_FORECAST_SECONDS: Final = 10 * 365 * 86400
# Maximum numbers of lines of one kind, and of characters of a target.
_MAX_LINES: Final = 8
_MAX_TARGET_CHARACTERS: Final = 60
# The tone and the badge of a state; a card has those of the first state that one of its counters
# has.
_STATES: Final[dict[str, tuple[Tone, str]]] = {
    "grows": ("bad", "grows"),
    "flat": ("good", "no growth"),
    "unsure": ("plain", "too early"),
}


@dataclass(frozen=True, slots=True)
class StatusLine:
    """A line of the state; `runs_out`: of a counter that will reach its limit."""

    text: str
    runs_out: bool = False

    def __str__(self) -> str:
        return self.text


def lines(history: History) -> Iterator[StatusLine]:
    """Yield a title, counters of the tree and of growing processes, new descriptors, and notes."""
    yield StatusLine(_title(history))
    seen = {printable(name): one for name, one in outlooks(history).items()}
    width = max(map(len, seen), default=0)
    for name, outlook in seen.items():
        now, gained, growth = counter_text(outlook)
        yield StatusLine(f"  {name:<{width}}{now:>11}{gained:>12}  {growth}", bool(_ends(outlook)))
    yield from (StatusLine(f"  new     {text}") for text in _new_lines(history))
    yield from (
        StatusLine(f"  note    {printable(text)}") for text in islice(history.notes, _MAX_LINES)
    )


def _title(history: History) -> str:
    """Return a line with the watched process, the duration, the number of samples, and the step."""
    step = "" if history.step is None else f", step {history.step:,}"
    seconds = duration(history.last - history.first)
    return printable(
        f"{history.start.root} {history.start.command}: {seconds}, {history.samples:,} samples{step}"
    )


def _new_lines(history: History) -> list[str]:
    """Return lines for the new descriptors by target (what they refer to), most frequent first."""
    # If the counts were last updated more than two intervals before the last sample, each line says
    # when that was.
    counts = sum(map(Counter, history.new.values()), Counter())
    early = history.last - history.looked > 2 * history.start.interval
    when = f" after {duration(history.looked - history.first)}" if early else ""
    shown = counts.most_common(_MAX_LINES)
    texts = [
        f"{count:,} × {printable(target)[-_MAX_TARGET_CHARACTERS:]}{when}"
        for target, count in shown
    ]
    return (
        [*texts, f"and {len(counts) - len(shown):,} more targets"]
        if len(counts) > len(shown)
        else texts
    )


def counter_text(outlook: Outlook) -> tuple[str, str, str]:
    """Return the last reading, the growth since the first, and its rate with the time left."""
    unit = outlook.resource.unit
    now, gained = (
        f"{value:,}" if unit == "count" else format_amount(value, unit)
        for value in (outlook.now, outlook.gained)
    )
    return (
        now,
        f"{'+' if outlook.gained >= 0 else ''}{gained}",
        printable(_growth(outlook, unit) + _ends(outlook)),
    )


def _growth(outlook: Outlook, unit: Unit) -> str:
    if outlook.state == "flat":
        return "no growth seen" + (
            f"; would have caught ≥ {_rate(outlook.floor, unit)} per {outlook.axis}"
            if outlook.floor
            else ""
        )
    if outlook.slope is None:
        return "too early to tell"
    sign = "+" if outlook.slope.value >= 0 else ""
    interval = f"({_rate(outlook.slope.low, unit)} to {_rate(outlook.slope.high, unit)})"
    proved = "" if outlook.state == "grows" else "not proved: "
    return f"{proved}{sign}{_rate(outlook.slope.value, unit)} per {outlook.axis} {interval}"


def _ends(outlook: Outlook) -> str:
    """Return when a limit will be reached; empty if none will, or only after ten years."""
    if not outlook.left or outlook.left[0] * outlook.pace > _MAX_FORECAST_SECONDS:
        return ""
    expected, shortest, longest = (left * outlook.pace for left in outlook.left)
    interval = (
        f" ({duration(shortest)} to {duration(longest)})"
        if longest <= _MAX_FORECAST_SECONDS
        else ""
    )
    steps = f", {outlook.left[0]:,.0f} steps" if outlook.axis == "step" else ""
    return f"; runs out in ≈ {duration(expected)}{interval}{steps}: {outlook.limit}"


def duration(seconds: float) -> str:
    """Format seconds in at most two units: ``3 min 20 s``, ``2 h 5 min``, ``4.2 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    counts = [(round(seconds) // size % most, unit) for size, most, unit in _UNITS]
    first = next(at for at, (count, _unit) in enumerate(counts) if count)
    return " ".join(f"{count} {unit}" for count, unit in counts[first : first + 2] if count)


def _rate(value: float, unit: Unit) -> str:
    """Format a growth rate; a count with two decimals, or two significant digits below 0.095."""
    if unit == "bytes":
        return format_amount(value, "bytes")
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def page_of_ledger(path: Path) -> Page:
    """Return the page of a ledger; raise `DecodeError` if the file is none."""
    histories = read_histories(path)
    summary = "Watched from outside. Growth is that of the later half of each watch, with a 95 % interval."
    section = Section(cards=tuple(map(_build_card, histories)))
    commands = ", ".join(dict.fromkeys(one.start.command for one in histories))
    partial = not all(one.ended for one in histories)
    return Page(
        commands,
        summary=(summary,),
        facts=(("file", path.name),),
        sections=(section,),
        partial=partial,
    )


def _build_card(history: History) -> Card:
    views = outlooks(history)
    totals = {name: one for name, one in views.items() if " of " not in name}
    states = [*(one.state for one in totals.values()), "unsure"]
    tone, badge = next(shown for state, shown in _STATES.items() if state in states)
    rows = {name: (name, "{}, {}; {}".format(*counter_text(one))) for name, one in views.items()}
    no_end = (
        ()
        if history.ended
        else ("No end was recorded: the watch was killed, or is still running.",)
    )
    parts = (
        Part("What is counted", tuple(rows[name] for name in totals)),
        Part("Which process", tuple(row for name, row in rows.items() if name not in totals)),
        Part("New descriptors", tuple(("new", text) for text in _new_lines(history))),
        Part("Notes", tuple(("note", text) for text in (*history.notes, *no_end))),
    )
    # What does not grow is in the rows.
    drawn = {name: one for name, one in totals.items() if one.state != "flat"} or totals
    charts = [_build_chart(name, history.tracks[name], one) for name, one in drawn.items()]
    return Card(
        _title(history),
        tone,
        badge,
        (f"from {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(history.start.at))}",),
        "; ".join(
            f"{name} {counter_text(one)[2]}" for name, one in totals.items() if one.state == "grows"
        ),
        tuple(part for part in parts if part.rows),
        # Those of counters that grow first.
        tuple(sorted(charts, key=lambda chart: chart.curves[0].tone != "bad")),
    )


def _build_chart(name: str, track: Track, outlook: Outlook) -> Chart:
    xs = (
        [float(step) for step in track.steps]
        if outlook.axis == "step"
        else [at - track.at[0] for at in track.at]
    )
    points = tuple((x, float(value)) for x, value in zip(xs, track.values, strict=True) if x >= 0)
    line = limit = None
    if outlook.state == "grows" and outlook.slope is not None:
        begin = outlook.slope.level - outlook.slope.value * (
            outlook.slope.end - outlook.slope.start
        )
        line = (outlook.slope.start, begin), (outlook.slope.end, outlook.slope.level)
        if _ends(outlook):
            left, text = (
                outlook.left[0],
                f"limit in ≈ {duration(outlook.left[0] * outlook.pace)}: {outlook.limit}",
            )
            limit = Limit(
                outlook.slope.end + left, outlook.slope.level + outlook.slope.value * left, text
            )
    curve = Curve("", points, _STATES[outlook.state][0], line)
    return Chart(
        f"{name}: {outlook.resource.plural}",
        outlook.resource.unit,
        outlook.axis,
        (curve,),
        counter_text(outlook)[2],
        limit,
    )
