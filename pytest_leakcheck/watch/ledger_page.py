"""A ledger as a `Page`: an arm per watch, a chart per counter."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pytest_leakcheck.judge.slope import Slope
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.report.html.view_model import XY, Arm, Chart, Curve, Page, Tone
from pytest_leakcheck.watch.events import Began, Event
from pytest_leakcheck.watch.forecast import Outlook, Window, end_of_work, outlooks
from pytest_leakcheck.watch.history import History, Track
from pytest_leakcheck.watch.ledger import read_ledger
from pytest_leakcheck.watch.status_text import Row, new_lines, process_rows, rows, title

_TONES: Final[dict[str, Tone]] = {"grows": "bad", "flat": "good", "unsure": "plain"}
_MOST_NEW: Final = 12


def read_histories(path: Path) -> list[History]:
    """The watches of a ledger, in order; what could not be read is among the notes of the watch that it belongs to.

    Raises:
        LedgerError: It is none.
        OSError: It cannot be read.
    """
    return _histories(read_ledger(path))


def page_of_ledger(path: Path) -> Page:
    """The page of a ledger. Raises as `read_histories`."""
    histories = read_histories(path)
    arms = tuple(map(_arm, histories))
    summary = "Watched from outside; growth is that of the later half of each watch, with an interval of 95 %."
    return Page(path.name, (summary,), arms, partial=any(not history.ended for history in histories))


def _histories(events: Iterable[Event | str]) -> list[History]:
    found: list[History] = []
    for event in events:
        if isinstance(event, Began):
            found.append(History(event))
        elif isinstance(event, str):
            found[-1].note(event)
        else:
            found[-1].absorb(event)
    return found


def _arm(history: History) -> Arm:
    views = outlooks(history, floor=True)
    told = rows(history, floor=True)
    growing = any(one.state == "grows" for one in views.values())
    tone: Tone = "bad" if growing else "good" if any(one.state == "flat" for one in views.values()) else "plain"
    verdicts = [_line(row) for row in told]
    verdicts += [_line(row) for row in process_rows(history) if row.ends or history.ended]
    if not history.ended:
        verdicts.append("It has no end: the watch was killed, or goes on.")
    charts = [
        _chart(history, row, history.totals[name], one)
        for row, (name, one) in zip(told, views.items(), strict=True)
        if len(history.totals[name].values)
    ]
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(history.began.at))
    details = [f"new       {text}" for text in new_lines(history, _MOST_NEW)] + [
        f"note      {text}" for text in history.notes
    ]
    return Arm(f"{title(history)}, from {began}", tone, tuple(verdicts), "\n".join(details), tuple(charts))


def _line(row: Row) -> str:
    return f"{row.name}: {row.now}, {row.gained}; {row.growth}" + (f"; ends in {row.ends}" if row.ends else "")


def _chart(history: History, row: Row, track: Track, one: Outlook) -> Chart:
    resource = find_resource(one.name.partition(":")[0])
    by_step = one.per_step is not None
    window = Window.of(track)
    late = Window.of(track, end_of_work(history)).later_half()
    first = track.at[0]
    xs = [float(step) for step in window.steps] if by_step else [at - first for at in window.at]
    points = tuple((x, float(value)) for x, value in zip(xs, window.values, strict=True) if x >= 0)
    # Slopes over time are counted from the beginning of their window.
    slope, offset = (one.per_step, 0.0) if by_step else (one.per_second, late.at[0] - first)
    curve = Curve("", points, _TONES[one.state], _fitted(slope, offset) if one.state == "grows" else None)
    name = f"{one.name}: {resource.plural}"
    return Chart(name, resource.unit, "step" if by_step else "second", (curve,), row.growth)


def _fitted(slope: Slope | None, offset: float) -> tuple[XY, XY] | None:
    if slope is None:
        return None
    begin = slope.level - slope.value * (slope.end - slope.start)
    return (slope.start + offset, begin), (slope.end + offset, slope.level)
