"""Define the interface of the fixture ``leakcheck``, whose methods measure nothing here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pytest_leakcheck.config.budget import Levels, read_levels

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Leakcheck:
    """The fixture, which a test can use with and without ``--leakcheck``.

    This base class measures nothing: loops run `n` steps, by default one; other calls have no effect.
    """

    @property
    def rank(self) -> int:
        """The number of this process or thread, from 0, if several run the test together; else 0."""
        return 0

    def steps(self, n: int | None = None, **levels: Unpack[Levels]) -> Iterator[int]:
        """Judge a loop: ``for step in leakcheck.steps(fd=0, heap="1 MiB"): train(step)``.

        The numbers of the steps begin at 0 and include the warm-up. A red (failing) verdict raises `LeakError` at the
        end of the loop.

        Args:
            n: The number of steps after the warm-up; if omitted, as many as the verdict needs.
            levels: How far each resource may be above its start level (the reading after the warm-up); with
                ``fd=None``, only the growth of ``fd`` is bounded. If omitted, the growth of all resources that are
                judged by default is bounded.
        """
        # The report on wrong use ends with the user's own line.
        __tracebackhide__ = True
        read_levels(levels)
        check_steps(n)
        return iter(range(1 if n is None else n))

    def budget(self, **levels: Unpack[Levels]) -> contextlib.AbstractContextManager[None]:
        """Judge a block that runs once: ``with leakcheck.budget(fd=0, heap="1 MiB"): run()``.

        The levels state how far each resource may be above its level before the block. If they are omitted, file
        descriptors, threads, child processes, shared memory and temporary files are limited to 0. The end of the block
        raises `LeakError` if a level is exceeded, or if something was released only by the garbage collector.
        """
        __tracebackhide__ = True
        read_levels(levels)
        return contextlib.nullcontext()

    def gauge(self, name: str, read: Callable[[], int] | int, *, level: int | None = None) -> None:
        """Follow a counter of your own, which must not keep growing.

        The counter is read after each step of a loop, and before and after a block. In a test that is repeated as a
        whole, it is read at the end of the body, so call this method in each iteration. In a test that runs at several
        sizes (``scaling_budget``), it is read at each call and return of a function, and its highest reading counts. If
        `read` is a number there, that number is a single reading.
        """

    def checkpoint(self, label: str) -> None:
        """End a phase of the test; the report shows each phase separately.

        In a repeated test or loop, the report shows what the phase adds to the counters. In a test that runs at several
        sizes, it shows the peaks in the phase.
        """


def check_steps(n: int | None) -> None:
    """Raise `ValueError` if the number of steps of a loop is less than 1; None is valid."""
    __tracebackhide__ = True
    if n is not None and n < 1:
        raise ValueError(f"leakcheck.steps({n!r}): the number of steps must be at least 1")
