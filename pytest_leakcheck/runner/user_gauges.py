"""Store gauges (user-defined counters) and phases of a test, set by the fixture ``leakcheck``.

Functions that read gauges refer to objects of the test, so each iteration releases them; only
numbers in arrays stay.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from functools import partial

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.recording import UserPhase
from pytest_leakcheck.model.resources import GAUGE_PREFIX


class Gauges:
    """The gauges of a test, set in each iteration and read at the end of its body.

    They are read before fixtures are torn down.
    """

    def __init__(self) -> None:
        self._cells: dict[str, array[int]] = {}
        self._levels: dict[str, int | None] = {}
        self._reads: dict[str, Callable[[], int] | int | None] = {}
        self._sealed = False

    def follow(self, name: str, read: Callable[[], int] | int, level: int | None) -> None:
        """Follow a gauge, or take the reading itself, in this iteration.

        A `level` of None bounds growth only.

        Raises:
            RuntimeError: The gauge is new after the first iteration.
        """
        if name not in self._cells:
            if self._sealed:
                raise RuntimeError(
                    f"leakcheck.gauge({name!r}) was not called in the first iteration: call it in every iteration, or in none"
                )
            self._cells[name] = array("q", (0,))
            self._levels[name] = level
        self._reads[name] = read

    def read(self) -> None:
        """Read all gauges at the end of the body, and release the test's objects."""
        for name, read in self._reads.items():
            if read is not None:
                self._cells[name][0] = read() if callable(read) else read
                # Keep the key, so that the dict keeps its size.
                self._reads[name] = None

    def _read_now(self, name: str) -> int:
        """Return a gauge's current value while the test body runs, then its last reading."""
        read = self._reads[name]
        return read() if callable(read) else self._cells[name][0]

    def seal(self) -> tuple[Mapping[str, Callable[[], int]], tuple[Budget, ...]]:
        """Accept no more gauges after the first iteration; return their readers and budgets."""
        self._sealed = True
        budgets = tuple(Budget(GAUGE_PREFIX + name, level) for name, level in self._levels.items())
        return {name: partial(self._read_now, name) for name in self._cells}, budgets


class Phases:
    """What each phase of the last iteration has added to the counters.

    A phase ends at a ``leakcheck.checkpoint(label)``. Each label that was seen before `open` has a
    preallocated row, so that its phase allocates nothing.
    """

    def __init__(self) -> None:
        self._counters: Mapping[str, Callable[[], int]] = {}
        self._before: array[int] = array("q")
        self._gained: dict[str, array[int]] = {}

    def open(self, counters: Mapping[str, Callable[[], int]]) -> None:
        """Follow counters from now on; their reading functions must be cheap."""
        self._counters = counters
        self._before = self._new_row()
        self._gained = {label: self._new_row() for label in self._gained}

    def begin(self) -> None:
        if self._gained:
            self._read_before()

    def end(self, label: str) -> None:
        if label not in self._gained:
            self._gained[label] = self._new_row()
        gained = self._gained[label]
        for at, read in enumerate(self._counters.values()):
            gained[at] = read() - self._before[at]
        self._read_before()

    def take(self) -> tuple[UserPhase, ...]:
        """Return the phases, in the order in which they first ended."""
        return tuple(
            UserPhase(label, dict(zip(self._counters, row, strict=True)))
            for label, row in self._gained.items()
        )

    def _read_before(self) -> None:
        for at, read in enumerate(self._counters.values()):
            self._before[at] = read()

    def _new_row(self) -> array[int]:
        return array("q", bytes(8 * len(self._counters)))
