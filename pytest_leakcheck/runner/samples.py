"""Store the readings of one process in preallocated columns: a new row allocates nothing."""

from __future__ import annotations

from array import array
from itertools import pairwise

from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.runner.pacing import Pace


class Samples:
    """The readings so far, a column per counter; row 0 is the start level.

    Attributes:
        n: The index of the last row; -1 before the start level is read.
        capacity: The maximum number of rows.
        columns: The readings, by resource.
        released: What the garbage collector released in each iteration, by resource.
        paced: The counters that are not read in every row.
        kinds: How the readings came about, by resource; only of counters that are not measured.
    """

    def __init__(self, capacity: int) -> None:
        """Start without columns.

        Args:
            capacity: The maximum number of rows.
        """
        self.n = -1
        self.capacity = capacity
        self.columns: dict[str, array[int]] = {}
        self.released: dict[str, array[int]] = {}
        self.paced: list[Pace] = []
        self.kinds: dict[str, Kind] = {}

    def has(self, resource: str) -> bool:
        return resource in self.columns

    def level(self, resource: str) -> int:
        """Return the last reading."""
        return self._filled_column(resource)[self.n]

    def levels(self) -> dict[str, int]:
        """Return the last reading of each counter, by resource; a rarely read one may be from an earlier row."""
        paced = {id(one.column): one.last for one in self.paced}
        return {name: paced.get(id(column), column[self.n]) for name, column in self.columns.items()}

    def above_start(self, resource: str) -> int:
        column = self._filled_column(resource)
        return column[self.n] - column[0]

    def rises(self, resource: str) -> int:
        """Count the rows in which the counter was higher than in the row before."""
        x = self.series(resource).readings
        return sum(1 for before, after in pairwise(x) if after > before)

    def series(self, resource: str) -> Series:
        released = self.released[resource][: self.n] if resource in self.released else ()
        kind = self.kinds.get(resource, "measured")
        return Series(resource, tuple(self._filled_column(resource)[: self.n + 1]), tuple(released), kind)

    def all_series(self) -> tuple[Series, ...]:
        return tuple(map(self.series, self.columns)) if self.n >= 0 else ()

    def _filled_column(self, resource: str) -> array[int]:
        """Return a column up to the last row; rows without a reading are filled only here."""
        for paced in self.paced:
            paced.fill(self.n)
        return self.columns[resource]

    def new_column(self) -> array[int]:
        """Return a column of zeros that is not among the columns yet."""
        # An array stores plain 64-bit numbers. With a list, the harness would allocate int objects for each row.
        return array("q", bytes(8 * self.capacity))
