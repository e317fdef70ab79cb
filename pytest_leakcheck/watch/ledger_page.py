"""Convert a ledger to a `Page`: each watch becomes a `Card`, with one chart per counter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from pytest_leakcheck.report.html.view_model import Card, Chart, Curve, Page, Part, Section, Tone
from pytest_leakcheck.watch.forecast import Outlook, outlooks
from pytest_leakcheck.watch.history import History, Track, read_histories
from pytest_leakcheck.watch.status_text import counter_text, new_lines, title

# The tone and the badge of a state; a card has those of the first state that one of its counters has.
_STATES: Final[dict[str, tuple[Tone, str]]] = {
    "grows": ("bad", "grows"),
    "flat": ("good", "no growth"),
    "unsure": ("plain", "too early"),
}


def page_of_ledger(path: Path) -> Page:
    """Return the page of a ledger; raise `DecodeError` if the file is none."""
    histories = read_histories(path)
    summary = "Watched from outside. Growth is that of the later half of each watch, with a 95 % interval."
    section = Section(cards=tuple(map(_build_card, histories)))
    return Page(path.name, summary=(summary,), sections=(section,), partial=not all(one.ended for one in histories))


def _build_card(history: History) -> Card:
    views = outlooks(history)
    totals = {name: one for name, one in views.items() if " of " not in name}
    states = [*(one.state for one in totals.values()), "unsure"]
    tone, badge = next(shown for state, shown in _STATES.items() if state in states)
    rows = {name: (name, "{}, {}; {}".format(*counter_text(one))) for name, one in views.items()}
    no_end = () if history.ended else ("No end was recorded: the watch was killed, or is still running.",)
    parts = (
        Part("What is counted", tuple(rows[name] for name in totals)),
        Part("Which process", tuple(row for name, row in rows.items() if name not in totals)),
        Part("New descriptors", tuple(("new", text) for text in new_lines(history))),
        Part("Notes", tuple(("note", text) for text in (*history.notes, *no_end))),
    )
    charts = [_build_chart(name, history.tracks[name], one) for name, one in totals.items()]
    return Card(
        title(history),
        tone,
        badge,
        (f"from {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(history.start.at))}",),
        "; ".join(f"{name} {counter_text(one)[2]}" for name, one in totals.items() if one.state == "grows"),
        tuple(part for part in parts if part.rows),
        # Those of counters that grow first.
        tuple(sorted(charts, key=lambda chart: chart.curves[0].tone != "bad")),
    )


def _build_chart(name: str, track: Track, one: Outlook) -> Chart:
    xs = [float(step) for step in track.steps] if one.axis == "step" else [at - track.at[0] for at in track.at]
    points = tuple((x, float(value)) for x, value in zip(xs, track.values, strict=True) if x >= 0)
    line = None
    if one.state == "grows" and one.slope is not None:
        begin = one.slope.level - one.slope.value * (one.slope.end - one.slope.start)
        line = (one.slope.start, begin), (one.slope.end, one.slope.level)
    curve = Curve("", points, _STATES[one.state][0], line)
    return Chart(f"{name}: {one.resource.plural}", one.resource.unit, one.axis, (curve,), counter_text(one)[2])
