"""Convert a ledger (the file of events) to a `Page`: each watch becomes a `Card`, with one chart per counter."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pytest_leakcheck.judge.slope import Slope
from pytest_leakcheck.model.resources import RESOURCES, find_resource
from pytest_leakcheck.report.html.view_model import XY, Card, Chart, Curve, Page, Part, Row, Section, Tone
from pytest_leakcheck.watch.events import Began, Event
from pytest_leakcheck.watch.forecast import Outlook, Window, end_of_work, outlooks
from pytest_leakcheck.watch.history import History, Track
from pytest_leakcheck.watch.ledger import LedgerError, read_ledger
from pytest_leakcheck.watch.status_text import Row as CounterRow
from pytest_leakcheck.watch.status_text import new_lines, process_rows, rows, title

_TONES: Final[dict[str, Tone]] = {"grows": "bad", "flat": "good", "unsure": "plain"}
# Maximum number of targets (what new descriptors refer to) that are listed per watch.
_MAX_NEW_TARGETS: Final = 12


def read_histories(path: Path) -> list[History]:
    """Return the watches of a ledger in order; a line that cannot be read becomes a note. Raises as `read_ledger`."""
    return _group_by_watch(read_ledger(path))


def page_of_ledger(path: Path) -> Page:
    """Return the page of a ledger; raise `LedgerError` if the file is none, and OSError if it cannot be read."""
    histories = read_histories(path)
    _check_names(histories)
    cards = tuple(map(_build_card, histories))
    summary = "Watched from outside. Growth is that of the later half of each watch, with a 95 % interval."
    return Page(
        path.name,
        summary=(summary,),
        sections=(Section(cards=cards),),
        partial=any(not history.ended for history in histories),
    )


def _check_names(histories: Iterable[History]) -> None:
    """Raise `LedgerError` if a total is not one of those that a watch writes."""
    for name in (name for history in histories for name in history.totals):
        if name.partition(":")[0] not in RESOURCES:
            raise LedgerError(f"damaged ledger: unknown total {name!r}")


def _group_by_watch(events: Iterable[Event | str]) -> list[History]:
    found: list[History] = []
    for event in events:
        if isinstance(event, Began):
            found.append(History(event))
        elif isinstance(event, str):
            found[-1].note(event)
        else:
            found[-1].absorb(event)
    return found


def _build_card(history: History) -> Card:
    views = outlooks(history, floor=True)
    total_rows = rows(history, floor=True)
    growing = [row for row, one in zip(total_rows, views.values(), strict=True) if one.state == "grows"]
    flat = any(one.state == "flat" for one in views.values())
    tone: Tone = "bad" if growing else "good" if flat else "plain"
    badge = {"bad": "grows", "good": "no growth", "plain": "too early"}[tone]
    details = [_row_of(row) for row in process_rows(history) if row.ends or history.ended]
    news = [Row("new", "\n".join(new_lines(history, _MAX_NEW_TARGETS)))]
    notes = [Row("note", text) for text in history.notes]
    if not history.ended:
        notes.append(Row("note", "No end was recorded: the watch was killed, or is still running."))
    parts = (
        Part("What is counted", tuple(map(_row_of, total_rows))),
        Part("Which process", tuple(details)),
        Part("New descriptors", tuple(row for row in news if row.text)),
        Part("Notes", tuple(notes)),
    )
    charts = [
        _build_chart(history, row, history.totals[name], one)
        for row, (name, one) in zip(total_rows, views.items(), strict=True)
        if len(history.totals[name].values)
    ]
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(history.began.at))
    return Card(
        title(history),
        tone,
        badge,
        (f"from {began}",),
        "; ".join(f"{row.name} {row.growth}{_format_end(row)}" for row in growing),
        tuple(part for part in parts if part.rows),
        # Those of counters that grow first.
        tuple(sorted(charts, key=lambda chart: chart.curves[0].tone != "bad")),
    )


def _row_of(row: CounterRow) -> Row:
    return Row(row.name, f"{row.now}, {row.gained}; {row.growth}{_format_end(row)}")


def _format_end(row: CounterRow) -> str:
    return f"; runs out in {row.ends}" if row.ends else ""


def _build_chart(history: History, row: CounterRow, track: Track, one: Outlook) -> Chart:
    resource = find_resource(one.name.partition(":")[0])
    by_step = one.per_step is not None
    window = Window.of(track)
    late = Window.of(track, end_of_work(history)).later_half()
    first = track.at[0]
    xs = [float(step) for step in window.steps] if by_step else [at - first for at in window.at]
    points = tuple((x, float(value)) for x, value in zip(xs, window.values, strict=True) if x >= 0)
    # A slope over time was fitted with time 0 at the start of its window; in the chart, time 0 is the first reading.
    slope, offset = (one.per_step, 0.0) if by_step else (one.per_second, late.at[0] - first)
    curve = Curve("", points, _TONES[one.state], _ends_of_line(slope, offset) if one.state == "grows" else None)
    name = f"{one.name}: {resource.plural}"
    return Chart(name, resource.unit, "step" if by_step else "second", (curve,), row.growth)


def _ends_of_line(slope: Slope | None, offset: float) -> tuple[XY, XY] | None:
    if slope is None:
        return None
    begin = slope.level - slope.value * (slope.end - slope.start)
    return (slope.start + offset, begin), (slope.end + offset, slope.level)
