"""How often a counter is read: as often as its cost allows, and in every row while it rises."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from math import ceil
from typing import Final

# What one counter may cost per row on average: 0.2 us, and half a percent of what an iteration takes.
_SECONDS: Final = 0.2e-6
_SHARE: Final = 0.005
# The rule needs a dozen readings of a counter that rises; until it does, one in so many rows is enough.
_RAREST: Final = 64
_RISING: Final = 32


class Pace:
    """Reads into a column; rows in between repeat the last reading.

    A counter whose reading is dear (`sys.getallocatedblocks` takes 60 us in a large process, ``mallinfo2`` 0.5 ms in a
    heap with 10,000 holes) is timed, and read in every k-th row, so that it costs a fraction of a microsecond per row. Once it
    has risen by more than its tolerance it is read in every row, for as long as it keeps rising and 32 rows more: the
    rule then has all of the part that it judges.

    Attributes:
        column: Where rows go.
    """

    def __init__(self, read: Callable[[], int], column: array[int], own: array[int], tolerance: float) -> None:
        """
        Args:
            read: The counter.
            column: Where rows go.
            own: Holds one number, the harness's own part; it is taken off.
            tolerance: Growth per row that does not count as rising.
        """
        self._read = read
        self.column = column
        self._own = own
        self._tolerance = tolerance
        # The row of the last reading, that of the next, and until which each row is read; numbers kept as objects would
        # be blocks of the harness's own, as soon as they are above 256.
        self._rows = array("q", (0, 0, 0))
        self._at = array("d", (0.0,))

    @property
    def due(self) -> int:
        """The row in which it is to be read next."""
        return self._rows[1]

    @property
    def last(self) -> int:
        """The last reading."""
        return self.column[self._rows[0]]

    def fill(self, row: int) -> None:
        """Repeat the last reading up to this row."""
        last = self._rows[0]
        for at in range(last + 1, row + 1):
            self.column[at] = self.column[last]

    def go_back_to(self, row: int) -> None:
        """Take this row, which was read, for the last one: what was read since was for another purpose."""
        self._rows[0], self._rows[1] = row, row + 1

    def read_into(self, row: int) -> None:
        """Read, and fill the rows since the last reading."""
        column, rows = self.column, self._rows
        if row > rows[0]:
            self.fill(row - 1)
        began = time.perf_counter()
        value = self._read() - self._own[0]
        cost = time.perf_counter() - began
        column[row] = value
        since = row - rows[0]
        if row == 0 or since < 0:
            rows[2] = since = 0
        elif since and value - column[rows[0]] > self._tolerance * since:
            rows[2] = row + _RISING
        every = 1
        # From the second reading on it is known what an iteration takes.
        if since and row >= rows[2]:
            every = min(_RAREST, ceil(cost / (_SECONDS + _SHARE * (began - self._at[0]) / since)))
        rows[0], rows[1], self._at[0] = row, row + every, began
