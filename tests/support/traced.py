"""Iterations under a tracer, counters for it to follow, and the lines that the tests expect it to name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pytest_leakcheck.attribution.tracing.backends import Lines, Tracer
from pytest_leakcheck.attribution.tracing.call_tree import CallTree, TracedCall
from pytest_leakcheck.attribution.tracing.tracer import Event, Handler, Listener
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.probes.garbage_collector import open_targets

# Long enough that no test is throttled that is not about it.
PLAIN = 5.0
ROUNDS = 5


class Counter:
    """A counter that the program moves by assignment, of which no tracer hears."""

    def __init__(self) -> None:
        self.value = 0

    def read(self) -> int:
        return self.value


class Counting:
    """A listener that counts the events of one file, and keeps nothing of them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.events = 0

    def begin(self) -> None: ...

    def handler(self) -> Handler:
        return self._on_event

    def _on_event(self, _event: Event, frame: FrameType, _called: Any) -> None:
        self.events += frame.f_code.co_filename == self._file


def trace(
    listener: Listener,
    work: Callable[[], object],
    rounds: int = 1,
    plain_seconds: float = PLAIN,
    depth: int | None = None,
) -> Tracer:
    """Trace iterations, each armed and disarmed; with a depth, without the events of deeper frames. Returns it closed."""
    tracer = Tracer(listener, plain_seconds)
    if depth is not None:
        tracer.throttle._depth = depth
    try:
        for _ in range(rounds):
            tracer.arm()
            try:
                work()
            finally:
                tracer.disarm()
    finally:
        tracer.close()
    return tracer


def tree_of(read: Callable[[], int], work: Callable[[], object]) -> CallTree:
    """The tree of calls: one iteration to make the nodes, and those that count."""
    tree = CallTree(read)
    trace(tree, work)
    tree.forget()
    tracer = trace(tree, work, ROUNDS)
    assert tracer.interrupted == ""
    return tree


def followed(read: Callable[[], int], work: Callable[[], object], slope: int | None = None) -> TracedCall:
    """What a tree of calls finds.

    With the slope that a verdict would give, also beside another thread that allocates, such as a test worker's.
    """
    tree = tree_of(read, work)
    return tree.traced() if slope is None else tree.explain(slope * ROUNDS)


def line_found(
    function: Callable[..., Any],
    read: Callable[[], int],
    work: Callable[[], object],
    rounds: int = 3,
    total: int | None = None,
) -> int:
    """The line of this function that the second round names, for a growth in all (default: all charged); 0 for none."""
    lines = Lines(function.__code__, read, PLAIN)
    try:
        for _ in range(rounds):
            lines.arm()
            try:
                work()
            finally:
                lines.disarm()
        assert lines.interrupted == ""
        return lines.line(total)
    finally:
        lines.close()


def marked(function: Callable[..., Any], mark: str = "# here") -> int:
    """The line with this mark in the function's source."""
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if mark in line)


def within(path: tuple[Site, ...], file: str) -> list[tuple[int, str, str]]:
    """Line, function (its last name) and call of the sites in one file."""
    return [(site.line, site.function.rpartition(".")[2], site.call) for site in path if site.file == file]


@contextmanager
def counted_fds() -> Iterator[tuple[Callable[[], int], Callable[[], dict[int, str]]]]:
    """Two readers of this process's descriptors: how many there are, and which."""
    folder = os.open("/proc/self/fd", os.O_RDONLY)
    # A kernel before 6.2 does not count them in the size of the folder.
    by_size = os.fstat(folder).st_size > 0
    try:
        yield (lambda: os.fstat(folder).st_size if by_size else len(open_targets())), open_targets
    finally:
        os.close(folder)
