"""The interface of the fixture ``leakcheck``, and the form of it that does nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

from pytest_leakcheck.config.budget import Level, read_levels


class Leakcheck(Protocol):
    """What a test sees of it, measuring or not.

    Attributes:
        rank: Which rank of a world this is, from 0; 0 where there is none.
    """

    @property
    def rank(self) -> int: ...

    def steps(self, n: int | None = None, **levels: Level) -> Iterator[int]:
        """Judge a loop: ``for step in leakcheck.steps(fd=0, heap="1 MiB"): train(step)``.

        Args:
            n: So many steps after the warm-up; left out, as many as the verdict needs.
            levels: How far each resource may stand above the start; None bounds its growth only. Left out, all
                resources that are judged by default.

        Yields:
            The number of the step, from 0; warm-up included.

        Raises:
            LeakError: In place of the loop's end, when the verdict is red.
        """
        ...

    def budget(self, **levels: Level) -> contextlib.AbstractContextManager[None]:
        """Judge a block once, after against before: ``with leakcheck.budget(fd=0, heap="1 MiB"): run()``.

        Left out, descriptors, threads, child processes, shared memory and temporary files are held to 0.

        Raises:
            LeakError: At the block's end, when a level is exceeded or only the collector gave something back.
        """
        ...

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        """Follow a counter of your own: it must not keep growing.

        It is read after each step of a loop; in a test that is repeated as a whole, at the end of its body, so call it
        there in each iteration.
        In a test over an axis (``scaling_budget``) its highest reading counts, taken at each call and return; a number in
        place of a function is one reading.
        """
        ...

    def checkpoint(self, label: str) -> None:
        """A phase of the test ends here, and the report tells it apart from the next one.

        In a repeated test or loop by what it adds to the counters; in a test over an axis by its peaks.
        """
        ...


class Inert:
    """Nothing is measured: loops run one step, and what is followed is forgotten."""

    @property
    def rank(self) -> int:
        return 0

    def steps(self, n: int | None = None, **levels: Level) -> Iterator[int]:
        read_levels(levels)
        check_steps(n)
        yield from range(1 if n is None else n)

    def budget(self, **levels: Level) -> contextlib.AbstractContextManager[None]:
        read_levels(levels)
        return contextlib.nullcontext()

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        """Nothing is followed."""

    def checkpoint(self, label: str) -> None:
        """Nothing is measured."""


def check_steps(n: int | None) -> None:
    if n is not None and n < 1:
        raise ValueError(f"leakcheck.steps({n!r}): not a number of steps of at least 1")
