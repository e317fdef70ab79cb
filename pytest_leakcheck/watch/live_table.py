"""Show the state of a running watch as a live table on a terminal, drawn by the package rich, or as plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from pytest_leakcheck.watch.cpu_budget import Allowance
from pytest_leakcheck.watch.history import History
from pytest_leakcheck.watch.status_text import Row, lines, new_lines, process_rows, rows, title

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Share of one core for showing the state. Drawing a table takes 5 to 15 ms, printing lines 2 ms.
_CPU_SHARE: Final = 0.001
# A table is redrawn at least this often, in seconds, even if that takes more than its share of the core.
_MAX_REDRAW_SECONDS: Final = 120.0
# Plain lines are printed after 5 s and then at intervals that grow by half each time, up to ten minutes.
_FIRST_LINES_SECONDS: Final = 5.0
_LINES_INTERVAL_FACTOR: Final = 1.5
_MAX_LINES_SECONDS: Final = 600.0
# On a terminal with fewer columns, the table has no column for the growth since the first reading.
_MIN_WIDE_COLUMNS: Final = 60


class Screen(Protocol):
    """An output that shows the current state of a watch."""

    def show(self, history: History) -> None:
        """Show the state if that is due."""
        ...


class Lines:
    """Plain lines, printed at growing intervals and within a share of one core."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._wait = _FIRST_LINES_SECONDS
        self._due = clock() + _FIRST_LINES_SECONDS
        self._allowance = Allowance(_CPU_SHARE)

    def show(self, history: History) -> None:
        if self._clock() >= self._due and self._allowance.due and history.samples:
            self._allowance.do(lambda: print(*lines(history), sep="\n", file=self._file, flush=True))
            self._wait = min(_MAX_LINES_SECONDS, self._wait * _LINES_INTERVAL_FACTOR)
            self._due = self._clock() + self._wait


class Table:
    """A table, redrawn as often as its share of a core allows, or every ``refresh`` seconds; first at once."""

    def __init__(
        self,
        draw: Callable[[History], None],
        refresh: float | None,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._draw, self._clock = draw, clock
        self._allowance = Allowance(_CPU_SHARE, clock, spent)
        self._refresh = refresh
        self._due = float("-inf")

    def show(self, history: History) -> None:
        is_late = self._clock() >= self._due
        if is_late or (self._refresh is None and self._allowance.due):
            self._allowance.do(lambda: self._draw(history))
            self._due = self._clock() + (self._refresh or _MAX_REDRAW_SECONDS)


@contextmanager
def live_table(console: Console, refresh: float | None) -> Iterator[Table]:
    """Show a table at the bottom of the terminal, and erase it at the end."""
    from rich.live import Live

    # No auto-refresh: its thread would cost more than the watch.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Table(lambda history: live.update(table(history, console.width), refresh=True), refresh)


def table(history: History, width: int) -> RenderableType:
    """Return the state as a table for rich. Text that comes from the system is never parsed as markup."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    wide = width >= _MIN_WIDE_COLUMNS
    drawn = RichTable(box=None, padding=(0, 1, 0, 0), expand=False)
    drawn.add_column("")
    drawn.add_column("now", justify="right", no_wrap=True)
    if wide:
        drawn.add_column("gained", justify="right", no_wrap=True)
    drawn.add_column("growth", overflow="fold")

    def add(row: Row, style: str) -> None:
        cells = [row.now, row.gained] if wide else [row.now]
        ends = f"\nruns out in {row.ends}" if row.ends else ""
        drawn.add_row(*(Text(text, style=style) for text in (row.name, *cells, row.growth + ends)))

    for row in rows(history):
        add(row, "bold red" if row.ends else "")
    for row in process_rows(history):
        add(row, "dim" if not row.ends else "red")
    new = [Text(f"new  {text}") for text in new_lines(history)]
    notes = [Text(f"note {text}", style="yellow") for text in history.notes]
    return Group(Text(title(history), style="bold"), drawn, *new, *notes)
