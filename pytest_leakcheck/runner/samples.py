"""Readings of one process, a column for each counter: preallocated, so that a row more is no memory more."""

from __future__ import annotations

from array import array
from itertools import pairwise

from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import Kind
from pytest_leakcheck.runner.pacing import Pace


class Rows:
    """What has been read. Row 0 is the start that levels are measured from.

    Attributes:
        n: The index of the last row; -1 before the start is read.
    """

    def __init__(self, capacity: int) -> None:
        """Args: capacity: The largest number of rows."""
        self.n = -1
        self._capacity = capacity
        self._columns: dict[str, array[int]] = {}
        self._released: dict[str, array[int]] = {}
        self._paced: list[Pace] = []
        # Of what is not measured.
        self._kinds: dict[str, Kind] = {}

    def has(self, resource: str) -> bool:
        return resource in self._columns

    def level(self, resource: str) -> int:
        """The last reading."""
        return self._filled(resource)[self.n]

    def levels(self) -> dict[str, int]:
        """The last reading of each counter, by resource; of one that is read rarely it may be of an earlier row."""
        paced = {id(one.column): one.last for one in self._paced}
        return {name: paced.get(id(column), column[self.n]) for name, column in self._columns.items()}

    def above_start(self, resource: str) -> int:
        column = self._filled(resource)
        return column[self.n] - column[0]

    def rises(self, resource: str) -> int:
        """In how many rows it stood higher than in the one before."""
        x = self.series(resource).readings
        return sum(1 for before, after in pairwise(x) if after > before)

    def series(self, resource: str) -> Series:
        released = self._released[resource][: self.n] if resource in self._released else ()
        kind = self._kinds.get(resource, "measured")
        return Series(resource, tuple(self._filled(resource)[: self.n + 1]), tuple(released), kind)

    def all_series(self) -> tuple[Series, ...]:
        return tuple(map(self.series, self._columns)) if self.n >= 0 else ()

    def _filled(self, resource: str) -> array[int]:
        """A column, whole up to the last row: of what is read rarely the rows in between are filled in only here."""
        for paced in self._paced:
            paced.fill(self.n)
        return self._columns[resource]

    def _column(self) -> array[int]:
        # 64-bit numbers in place: Python ints kept in a list would be blocks that the harness leaks.
        return array("q", bytes(8 * self._capacity))
