"""Counters of a test's own and phases inside it, while the test is repeated: told by the fixture, read by the runner.

What a test hands over refers to its objects, so it is let go of at the end of each iteration; what stays are numbers in
place.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from functools import partial

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.recording import Phase
from pytest_leakcheck.model.resources import GAUGE_PREFIX


class Gauges:
    """Followed in each iteration anew, read when its body has ended and all that it made is still there."""

    def __init__(self, warmup: int) -> None:
        """Args: warmup: How many iterations come before the start is read."""
        self._warmup = warmup
        self._cells: dict[str, array[int]] = {}
        self._levels: dict[str, int | None] = {}
        self._reads: dict[str, Callable[[], int] | int | None] = {}
        self._sealed = False

    def follow(self, name: str, read: Callable[[], int] | int, level: int | None) -> None:
        """
        Raises:
            RuntimeError: It was not followed in the first iteration, or that is judged already.
        """
        if name not in self._cells:
            if self._warmup == 0:
                raise RuntimeError(f"leakcheck.gauge({name!r}) needs an iteration of warm-up: --leakcheck-warmup=1")
            if self._sealed:
                raise RuntimeError(
                    f"leakcheck.gauge({name!r}) was not called in the first iteration: call it in each, or in none"
                )
            self._cells[name] = array("q", (0,))
            self._levels[name] = level
        self._reads[name] = read

    def read(self) -> None:
        """The body has ended."""
        for name, read in self._reads.items():
            if read is not None:
                self._cells[name][0] = read() if callable(read) else read
                # Of the same dict, so that it does not grow.
                self._reads[name] = None

    def _now(self, name: str) -> int:
        """While a body runs, what it counts at this moment; after it, what it came to."""
        read = self._reads[name]
        return read() if callable(read) else self._cells[name][0]

    def seal(self) -> tuple[Mapping[str, Callable[[], int]], tuple[Budget, ...]]:
        """After the first iteration. Returns what reads the gauges, and what they are held to."""
        self._sealed = True
        return {name: partial(self._now, name) for name in self._cells}, tuple(
            Budget(GAUGE_PREFIX + name, level) for name, level in self._levels.items()
        )


class Phases:
    """What each part of the last iteration has added to the counters.

    Labels that come before it is opened are known from then on, so that a phase more is no memory more.
    """

    def __init__(self) -> None:
        self._counters: Mapping[str, Callable[[], int]] = {}
        self._before: array[int] = array("q")
        self._gained: dict[str, array[int]] = {}

    def open(self, counters: Mapping[str, Callable[[], int]]) -> None:
        """Args: counters: Cheap ones, by resource."""
        self._counters = counters
        self._before = self._row()
        self._gained = {label: self._row() for label in self._gained}

    def begin(self) -> None:
        """An iteration begins."""
        if self._gained:
            self._read_before()

    def end(self, label: str) -> None:
        """The phase of this label ends here, and the next one begins."""
        if label not in self._gained:
            self._gained[label] = self._row()
        gained = self._gained[label]
        for at, read in enumerate(self._counters.values()):
            gained[at] = read() - self._before[at]
        self._read_before()

    def take(self) -> tuple[Phase, ...]:
        """In the order in which they first ended."""
        return tuple(
            Phase(label, dict(zip(self._counters, gained, strict=True))) for label, gained in self._gained.items()
        )

    def _read_before(self) -> None:
        for at, read in enumerate(self._counters.values()):
            self._before[at] = read()

    def _row(self) -> array[int]:
        return array("q", bytes(8 * len(self._counters)))
