"""An arm while it runs: a table that is redrawn on a terminal, by rich, and elsewhere a line when a test is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from pytest_leakcheck.repro.arm import Event, Follower
from pytest_leakcheck.repro.course import Row, advance
from pytest_leakcheck.resources import find_resource
from pytest_leakcheck.units import format_amount, format_rate

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# What a table has room for beside what a test is judged by, and the columns that each takes.
COUNTERS: Final[Mapping[str, int]] = {"fd": 5, "heap": 9, "thread": 6}
_SO_FAR: Final = 16
_BAR: Final = 6
# Below so many columns the counters are left out, and then the bars.
_WIDE: Final = 76
_NARROW: Final = 60
_STYLES: Final[Mapping[str, str]] = {
    "leak": "bold red",
    "over_budget": "bold red",
    "unclosed": "bold red",
    "inconclusive": "yellow",
    "unavailable": "yellow",
}


def so_far(row: Row, resource: str) -> str:
    """What is known of a test, in a few words: a verdict, or how its counter grows until there is one.

    Args:
        row: The test.
        resource: What it is watched for.
    """
    worst = [f"{name} {outcome.replace('_', ' ')}" for name, outcome in row.verdicts.items() if outcome != "ok"]
    if worst:
        return worst[0] + (" · naming" if row.state == "naming" else "")
    if row.state == "over":
        return "ok" if row.outcome == "passed" else row.outcome
    if row.state == "running" or resource not in row.levels:
        return "running"
    return f"{resource} {format_rate(row.slope(resource), find_resource(resource).unit)}"


def gained(row: Row, resource: str) -> str:
    """What a counter has gained, for a cell of a table; empty where it is not read."""
    if resource not in row.levels:
        return ""
    much = row.gained(resource)
    return f"{'+' if much > 0 else ''}{format_amount(much, find_resource(resource).unit)}"


def lines_of(row: Row, resource: str) -> str:
    """A test that is over, as a line."""
    ran = f", {row.iteration} iterations" if row.iteration else ""
    return f"  {row.test}: {so_far(row, resource)}{ran}"


def table(title: str, rows: Sequence[Row], watched: Callable[[str], str], width: int) -> RenderableType:
    """The rows, to be printed by rich.

    Args:
        title: Above them.
        rows: The tests.
        watched: By a test, the resource that it is watched for.
        width: Columns of the terminal.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    counters = COUNTERS if width >= _WIDE else {}
    columns = {"": _BAR if width >= _NARROW else 0, "iter": 4, **counters, "so far": _SO_FAR}
    taken = sum(least + 1 for least in columns.values() if least)
    drawn = Table(box=None, padding=(0, 1, 0, 0))
    drawn.add_column("test", overflow="ellipsis", no_wrap=True, width=max(_BAR, width - taken - 1))
    for name, least in columns.items():
        if least:
            drawn.add_column(name, justify="left" if name in ("", "so far") else "right", no_wrap=True, width=least)
    for row in rows:
        style = next((_STYLES[one] for one in row.verdicts.values() if one in _STYLES), "")
        cells: list[RenderableType] = [Text(row.test)]
        if columns[""]:
            done = row.most if row.state == "over" else row.iteration
            cells.append(ProgressBar(total=row.most or 1, completed=done, width=_BAR))
        cells += [Text(str(row.iteration or "")), *(Text(gained(row, name), style="dim") for name in counters)]
        drawn.add_row(*cells, Text(so_far(row, watched(row.test)), style=style))
    return Group(Text(title, style="bold"), drawn)


@contextmanager
def follow_in_table(console: Console, title: str, watched: Callable[[str], str]) -> Iterator[Follower]:
    """A table at the bottom of the terminal, gone when the arm is over."""
    from rich.live import Live

    began = time.monotonic()
    rows: dict[str, Row] = {}

    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(events: Sequence[Event]) -> None:
            nonlocal rows
            rows = advance(rows, events)
            elapsed = f"{title} · {time.monotonic() - began:.0f} s"
            # What has scrolled out of a small terminal is told by the report.
            shown = list(rows.values())[-max(1, console.height - 4) :]
            live.update(table(elapsed, shown, watched, console.width), refresh=True)

        yield draw


@contextmanager
def follow_in_lines(file: TextIO, watched: Callable[[str], str]) -> Iterator[Follower]:
    """A line for each test that is over."""
    rows: dict[str, Row] = {}

    def tell(events: Sequence[Event]) -> None:
        nonlocal rows
        before, rows = rows, advance(rows, events)
        for test, row in rows.items():
            if row.state == "over" and (test not in before or before[test].state != "over"):
                print(lines_of(row, watched(test)), file=file, flush=True)

    yield tell
