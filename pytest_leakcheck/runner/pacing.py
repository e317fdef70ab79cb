"""Read a counter, and collect all garbage, only as often as the cost allows."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import ceil
from typing import Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.garbage_collector import CollectorWatch

# What reading one counter may cost on average per row (an iteration has one row): 0.2 us, plus half a percent of the
# time of an iteration.
_SECONDS_PER_ROW: Final = 0.2e-6
_ITERATION_SHARE: Final = 0.005
# The judging rule needs a dozen readings of a rising counter. Until the counter rises, one reading in 64 rows is
# enough. After a rise, the counter is read in each of the next 32 rows.
_MAX_ROW_INTERVAL: Final = 64
_ROWS_AFTER_RISE: Final = 32
# Full collections run in every row until more objects than this survive: a collection walks fewer in a millisecond or
# two. With more objects, full collections may take this share of the time of the iterations.
_MANY_OBJECTS: Final = 20_000
_COLLECTION_SHARE: Final = 0.5


class Pace:
    """A reader that stores the readings of one counter in `column`, and leaves rows out if a reading is expensive.

    `sys.getallocatedblocks` takes 60 us in a large process, ``mallinfo2`` 0.5 ms in a heap with 10,000 holes. So
    readings are timed, and the counter is read only in every k-th row (at most the 64th), to limit the average cost per
    row. The rows between repeat the last reading. Once the counter has risen by more than its tolerance, it is read in
    every row while it rises, and in 32 more rows: the judging rule then has all readings of the part that it judges.
    """

    def __init__(self, read: Callable[[], int], column: array[int], own: array[int], tolerance: float) -> None:
        """Read a counter less `own`, which the harness allocated; rises of up to `tolerance` per row do not count."""
        self._read = read
        self.column = column
        self._own = own
        self._tolerance = tolerance
        # Three rows: that of the last reading, that of the next one, and, once the counter has risen, the row up to
        # which no row is left out. They are in an array, because int objects above 256 would be blocks that the harness
        # allocates. `_at` is the time of the last reading.
        self._rows = array("q", (0, 0, 0))
        self._at = array("d", (0.0,))

    @property
    def due(self) -> int:
        return self._rows[1]

    @property
    def last(self) -> int:
        return self.column[self._rows[0]]

    def fill(self, row: int) -> None:
        """Repeat the last reading up to this row."""
        last = self._rows[0]
        for at in range(last + 1, row + 1):
            self.column[at] = self.column[last]

    def go_back_to(self, row: int) -> None:
        """Treat this row, which was read, as the last one, because later readings served another purpose."""
        self._rows[0], self._rows[1] = row, row + 1

    def read_into(self, row: int) -> None:
        """Read the counter into this row, and fill the rows since the last reading."""
        column, rows = self.column, self._rows
        if row > rows[0]:
            self.fill(row - 1)
        began = clock.monotonic()
        value = self._read() - self._own[0]
        cost = clock.monotonic() - began
        column[row] = value
        since = row - rows[0]
        if row == 0 or since < 0:
            rows[2] = since = 0
        elif since and value - column[rows[0]] > self._tolerance * since:
            rows[2] = row + _ROWS_AFTER_RISE
        every = 1
        # The time of an iteration is known from the second reading on.
        if since and row >= rows[2]:
            every = min(
                _MAX_ROW_INTERVAL, ceil(cost / (_SECONDS_PER_ROW + _ITERATION_SHARE * (began - self._at[0]) / since))
            )
        rows[0], rows[1], self._at[0] = row, row + every, began


class CollectionPace:
    """Collects all garbage as often as that is cheap, and in the other rows only the garbage among new objects.

    A full collection walks everything that the test has retained. Under a leak of 1,400 objects per iteration, it takes
    longer than an iteration of 20 ms from the 100th on, and the time is over before the leak is certain. Between full
    collections, garbage among older objects stays for a few rows, so the counters of what it holds rise and fall.
    """

    def __init__(self, watch: CollectorWatch) -> None:
        self._watch = watch
        # The row of the last full collection and that of the next one, and when the last one ended. In arrays, as in
        # `Pace`.
        self._rows = array("q", (0, 0))
        self._at = array("d", (0.0,))

    def restart(self) -> None:
        """Make the next row collect all garbage, because the series begins."""
        self._rows[1] = 0

    def collect(self, row: int, objects: int, *, whole: bool) -> int:
        """Collect garbage before a row is read, and return the number of garbage objects.

        `objects` is how many survived in the row before; with `whole`, all garbage is collected, whatever that costs.
        """
        rows = self._rows
        if objects <= _MANY_OBJECTS:
            rows[1] = 0
            return self._watch.collect()
        if not whole and row < rows[1]:
            return self._watch.collect_young()
        began = clock.monotonic()
        found = self._watch.collect()
        ended = clock.monotonic()
        every = 1
        if rows[1] and row > rows[0]:
            iteration = (began - self._at[0]) / (row - rows[0])
            every = min(_MAX_ROW_INTERVAL, ceil((ended - began) / (_COLLECTION_SHARE * iteration)))
        rows[0], rows[1], self._at[0] = row, row + every, ended
        return found
