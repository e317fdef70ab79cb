"""What is shown while a watch runs: a table that is redrawn on a terminal, by rich, and plain lines elsewhere."""

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

# Of one core. A table takes 5 to 15 ms each time, lines take 2 ms.
_SHARE: Final = 0.001
# A table that takes longer is redrawn after this many seconds all the same.
_SELDOM: Final = 120.0
# Plain lines come at ever longer distances: after 5 s, then each time half as much again, up to ten minutes.
_FIRST: Final = 5.0
_GROWS: Final = 1.5
_LONGEST: Final = 600.0
# Below this many columns what a counter has gained is left out.
_NARROW: Final = 60


class Screen(Protocol):
    """Where a watch is shown."""

    def show(self, history: History) -> None:
        """Show the state, if it is time."""
        ...


class Lines:
    """Prints the state from time to time, within a share of one core."""

    def __init__(self, file: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._wait = _FIRST
        self._due = clock() + _FIRST
        self._allowance = Allowance(_SHARE)

    def show(self, history: History) -> None:
        if self._clock() >= self._due and self._allowance.due and history.samples:
            self._allowance.do(lambda: print(*lines(history), sep="\n", file=self._file, flush=True))
            self._wait = min(_LONGEST, self._wait * _GROWS)
            self._due = self._clock() + self._wait


class Table:
    """Redraw a table as often as its share of one core allows, or at a given interval."""

    def __init__(
        self,
        draw: Callable[[History], None],
        refresh: float | None,
        clock: Callable[[], float] = time.monotonic,
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        """
        Args:
            draw: Draws it.
            refresh: Seconds; None goes by the cost.
            clock: Seconds that have passed.
            spent: Seconds of one core that this thread has used.
        """
        self._draw, self._clock = draw, clock
        self._allowance = Allowance(_SHARE, clock, spent)
        self._refresh = refresh
        self._due = float("-inf")

    def show(self, history: History) -> None:
        is_late = self._clock() >= self._due
        if is_late or (self._refresh is None and self._allowance.due):
            self._allowance.do(lambda: self._draw(history))
            self._due = self._clock() + (self._refresh or _SELDOM)


@contextmanager
def live_table(console: Console, refresh: float | None) -> Iterator[Table]:
    """A table in a place of its own at the bottom of the terminal, which stays when it is over."""
    from rich.live import Live

    # Without a thread of its own that redraws: that would cost more than the watch.
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Table(lambda history: live.update(table(history, console.width), refresh=True), refresh)


def table(history: History, width: int) -> RenderableType:
    """The state, to be printed by rich; texts of the system are never read as markup."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    wide = width >= _NARROW
    drawn = RichTable(box=None, padding=(0, 1, 0, 0), expand=False)
    drawn.add_column("")
    drawn.add_column("now", justify="right", no_wrap=True)
    if wide:
        drawn.add_column("gained", justify="right", no_wrap=True)
    drawn.add_column("growth", overflow="fold")

    def add(row: Row, style: str) -> None:
        cells = [row.now, row.gained] if wide else [row.now]
        ends = f"\nends in {row.ends}" if row.ends else ""
        drawn.add_row(*(Text(text, style=style) for text in (row.name, *cells, row.growth + ends)))

    for row in rows(history):
        add(row, "bold red" if row.ends else "")
    for row in process_rows(history):
        add(row, "dim" if not row.ends else "red")
    new = [Text(f"new  {text}") for text in new_lines(history)]
    notes = [Text(f"note {text}", style="yellow") for text in history.notes]
    return Group(Text(title(history), style="bold"), drawn, *new, *notes)
