"""The instruments side by side: each `read` adds one row to preallocated columns, and grows nothing else."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pytest_leakcheck.probes import open_probes
from pytest_leakcheck.probes.collector import ROUNDS, CollectorWatch
from pytest_leakcheck.probes.processes import Tree, process_tree
from pytest_leakcheck.resources import GAUGE_PREFIX
from pytest_leakcheck.series import Series

_TREE: Final = ("fd", "thread", "process")
# Threads and processes that end by themselves a little later (executors and resolvers take up to 2 s) are waited for,
# only where something looks wrong. A descriptor alone has nobody who would close it later, so it gets less.
_SETTLE: Final = 2.0
_SETTLE_DESCRIPTORS: Final = 0.25


class Panel:
    """Rows of readings of one process.

    Attributes:
        n: The index of the last row; -1 before the start is read.
        missing: Why a wanted resource cannot be read here.
        watch: The collector.
        patient: Wait at each row for what is about to end by itself.
    """

    def __init__(self, wanted: Iterable[str], gauges: Mapping[str, Callable[[], int]], capacity: int) -> None:
        """
        Args:
            wanted: Resources to read.
            gauges: Counters of the user's own by name; what is added before `start` is read too.
            capacity: The largest number of rows.

        Raises:
            Unavailable: Not even the process tree can be read here.
        """
        self.n = -1
        self.patient = False
        self._waited_in_vain = False
        self._capacity = capacity
        self._gauges = gauges
        self._tree: Tree = process_tree()
        self.watch = CollectorWatch(self._tree.own)
        self._tree.open()
        try:
            self._probes, self.missing = open_probes(name for name in wanted if name not in _TREE)
            self._make_columns()
            self.watch.open()
        except BaseException:
            self._tree.close()
            raise

    def _make_columns(self) -> None:
        self._columns = {name: self._column() for probe in (self._tree, *self._probes) for name in probe.resources}
        self._tree_columns = [self._columns[name] for name in _TREE]
        self._reads = [(probe.read, [self._columns[name] for name in probe.resources]) for probe in self._probes]
        self._released = {name: self._column() for name in _TREE}
        self._released_columns = [self._released[name] for name in _TREE]
        # What the harness's own judging can move: exact counters of memory. Resident memory wanders by more than that.
        self._own = {name: array("q", (0,)) for probe in self._probes for name in probe.resources if name != "rss"}

    def close(self) -> None:
        """Give back what was opened; the rows stay."""
        self.watch.close()
        for probe in (self._tree, *self._probes):
            probe.close()

    def start(self) -> None:
        """Read row 0, the start that levels are measured from; forgets earlier rows."""
        for name in self._gauges:
            self._columns.setdefault(GAUGE_PREFIX + name, self._column())
        self.n = 0
        # A collection also stops tracking tuples and dicts that hold only atoms, level by level: let that end first.
        for _ in range(ROUNDS):
            self.watch.collect()
        self._read_into(0)

    def read(self) -> None:
        """End an iteration: let the collector finish, and add a row."""
        row = self.n + 1
        self._read_into(row)
        self.n = row
        if self.patient:
            self.settle()

    def has(self, resource: str) -> bool:
        return resource in self._columns

    def level(self, resource: str) -> int:
        """The last reading."""
        return self._columns[resource][self.n]

    def above_start(self, resource: str) -> int:
        column = self._columns[resource]
        return column[self.n] - column[0]

    def series(self, resource: str) -> Series:
        released = self._released[resource][: self.n] if resource in self._released else ()
        return Series(resource, tuple(self._columns[resource][: self.n + 1]), tuple(released))

    def all_series(self) -> tuple[Series, ...]:
        return tuple(map(self.series, self._columns)) if self.n >= 0 else ()

    def settle(self) -> bool:
        """Wait while a scarce counter stands above the start, and correct the last row. Returns whether any fell."""
        pause, waited, fell = 0.001, 0.0, False
        while not self._waited_in_vain and any(self.above_start(name) > 0 for name in _TREE):
            ends_by_itself = fell or self.above_start("thread") > 0 or self.above_start("process") > 0
            if waited >= (_SETTLE if ends_by_itself else _SETTLE_DESCRIPTORS):
                break
            time.sleep(pause)
            waited, pause = waited + pause, min(2 * pause, 0.1)
            for name, value in zip(_TREE, self._tree.read(), strict=True):
                if value < self._columns[name][self.n]:
                    self._columns[name][self.n], fell = value, True
        self._waited_in_vain |= not fell and waited > 0
        return fell

    def frozen_garbage(self, resource: str) -> bool:
        """Whether most of what stands above the start is garbage that was alive when it was frozen.

        If so the program stays unfrozen: one that keeps replacing what it holds would leave the same trace again.
        """
        stood = self.above_start(resource)
        if not self.watch.enabled or stood <= 0:
            return False
        made = self._columns["object"][self.n] if "object" in self._columns else 0
        self.watch.thaw()
        if 2 * (self._read_one(resource) - self._columns[resource][0]) <= stood:
            for own in self._own.values():
                own[0] = 0
            return True
        self.watch.refreeze()
        if "object" in self._own:
            # What was made since the start is frozen now, and still counts.
            self._own["object"][0] = -made
        return False

    def came_down(self, resource: str) -> int:
        """How far a counter has fallen since the last row."""
        return self._columns[resource][self.n] - self._read_one(resource)

    def subtract_own_work(self) -> None:
        """What happened since the last row was the harness's doing: take it off the rows to come."""
        # Read as every row is read, into the row that comes next: another way of reading would differ by a temporary.
        scratch = self.n + 1
        self._read_into(scratch)
        for name in self._own:
            self._own[name][0] += self._columns[name][scratch] - self._columns[name][self.n]

    def _read_into(self, row: int) -> None:
        self._read_tree(row)
        for read, columns in self._reads:
            for value, column in zip(read(), columns, strict=True):
                column[row] = value
        for name, harness in self._own.items():
            if harness[0]:
                self._columns[name][row] -= harness[0]
        for name, gauge in self._gauges.items():
            self._columns[GAUGE_PREFIX + name][row] = gauge()

    def _read_tree(self, row: int) -> None:
        # In a frame of its own: the tuples that it makes are objects too, and gone when the objects are counted.
        before = self._tree.read()
        after = self._tree.read() if self.watch.enabled and self.watch.collect() else before
        automatic = self.watch.take_released()
        for at, column in enumerate(self._tree_columns):
            column[row] = after[at]
            if row:
                self._released_columns[at][row - 1] = automatic[at] + max(0, before[at] - after[at])

    def _read_one(self, resource: str) -> int:
        for probe in (self._tree, *self._probes):
            if resource in probe.resources:
                own = self._own.get(resource)
                return probe.read()[probe.resources.index(resource)] - (own[0] if own else 0)
        return self._columns[resource][self.n]

    def _column(self) -> array[int]:
        # 64-bit numbers in place: Python ints kept in a list would be blocks that the harness leaks.
        return array("q", bytes(8 * self._capacity))
