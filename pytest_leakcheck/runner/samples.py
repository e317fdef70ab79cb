"""Store the readings of one process in preallocated columns, so that a new row allocates nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Final

from pytest_leakcheck.judge.growth import State, growth
from pytest_leakcheck.model.recording import Series
from pytest_leakcheck.model.resources import RESIDENT, Kind, find_resource
from pytest_leakcheck.probes.memory import anonymous_of
from pytest_leakcheck.runner.pacing import Pace

# A counter that rises in so many successive rows may leak.
_STEADY_ROWS: Final = 4


class Samples:
    """The readings so far: one column per counter, one row per iteration; row 0 is the start level.

    Attributes:
        n: The index of the last row; -1 before the start level is read.
        released: The amount that the garbage collector released in each iteration, by resource.
        paced: The readers of counters that are not read in every row, because a reading is expensive.
        kinds: How the readings were obtained, by resource; ``measured`` where a resource is missing.
    """

    def __init__(self, capacity: int) -> None:
        self.n = -1
        self.capacity = capacity
        self.columns: dict[str, array[int]] = {}
        self.released: dict[str, array[int]] = {}
        self.paced: list[Pace] = []
        self.kinds: dict[str, Kind] = {}
        self._children: dict[int, Pace] = {}

    def follow_children(self, pids: Iterable[int]) -> None:
        """Count the memory of these processes from now on, each as long as it lives, for resident memory.

        One that ends leaves all rows, so that neither its start nor its end is a step.
        """
        followed = self._children.values()
        self.paced = [one for one in self.paced if one not in followed]
        own, tolerance = array("q", (0,)), find_resource(RESIDENT).tolerance
        self._children = {pid: Pace(partial(anonymous_of, pid), self.new_column(), own, tolerance) for pid in pids}
        self.paced += self._children.values()

    def children(self) -> dict[int, int]:
        """Return how much the memory of each process that is followed, and still lives, has grown, by its number."""
        return {pid: one.last - one.column[0] for pid, one in self._children.items() if one.last and one.column[0]}

    def grown_children(self) -> list[int]:
        """Return the numbers of the child processes whose memory has grown, most first; none if this process grew more."""
        grown = {pid: more for pid, more in self.children().items() if more > 0}
        if 2 * sum(grown.values()) < self.above_start(RESIDENT):
            return []
        return sorted(grown, key=grown.__getitem__, reverse=True)

    def has(self, resource: str) -> bool:
        return resource in self.columns

    def level(self, resource: str) -> int:
        return self._filled_column(resource)[self.n]

    def growth(self, resources: Iterable[str]) -> dict[str, float]:
        """Return the growth per row of each counter that is read; for a paced one, the last reading may be older."""
        paced = {id(one.column): one.last for one in self.paced}
        columns = {name: self.columns[name] for name in resources if name in self.columns}
        rows = max(1, self.n)
        return {name: (paced.get(id(one), one[self.n]) - one[0]) / rows for name, one in columns.items()}

    def above_start(self, resource: str) -> int:
        column = self._filled_column(resource)
        return column[self.n] - column[0]

    def rises_steadily(self) -> bool:
        """Return whether a counter has risen in each of the last few rows; one that was not read in all of them has not."""
        rows = range(self.n - _STEADY_ROWS, self.n)
        return rows.start >= 0 and any(
            all(column[row] < column[row + 1] for row in rows) for column in self.columns.values()
        )

    def rises(self, resource: str) -> int:
        x = self.series(resource).readings
        return sum(1 for before, after in pairwise(x) if after > before)

    def state(self, resource: str) -> State:
        """Return whether a counter grows; undecided for one that is not read."""
        if not self.has(resource):
            return "undecided"
        return growth(self.series(resource).readings, find_resource(resource).tolerance).state

    def series(self, resource: str) -> Series:
        released = self.released[resource][: self.n] if resource in self.released else ()
        kind = self.kinds.get(resource, "measured")
        return Series(resource, tuple(self._filled_column(resource)[: self.n + 1]), tuple(released), kind)

    def all_series(self) -> tuple[Series, ...]:
        return tuple(map(self.series, self.columns)) if self.n >= 0 else ()

    def _filled_column(self, resource: str) -> array[int]:
        """Return a column after filling the rows that have no reading, up to the last row."""
        for paced in self.paced:
            paced.fill(self.n)
        column = self.columns[resource]
        if resource == RESIDENT and (alive := self.children()):
            return array("q", map(sum, zip(column, *(self._children[pid].column for pid in alive), strict=True)))
        return column

    def new_column(self) -> array[int]:
        """Return a new column of zeros, without adding it to `columns`."""
        # An array stores plain 64-bit numbers. With a list, the harness would allocate int objects for each row.
        return array("q", bytes(8 * self.capacity))
