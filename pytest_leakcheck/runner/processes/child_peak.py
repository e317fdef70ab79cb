"""The peak memory of child processes, seen from a process that is not measured itself."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.memory import anonymous_of, peak_of
from pytest_leakcheck.probes.processes import descendants
from pytest_leakcheck.runner.processes.supervisor import Board

# Seconds from one look to the next: a child's mark only rises, so what a look misses is its last moments.
_EVERY: Final = 0.02
# The steps of the board between which the test's own body runs.
_BODY: Final = 2


class ChildrenPeak:
    """The sum of the marks of all children that lived at one time, at its highest.

    A child that was forked begins with its parent's pages, which are not its own: what its parent has of its own when it
    is first seen is taken off, unless it has become another program since.

    Attributes:
        peak: Bytes.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._first: dict[int, int] = {}
        self._next = 0.0

    def look(self, pid: int, board: Board) -> None:
        """At the children of this process, while the body of its test runs."""
        now = time.monotonic()
        if now < self._next or board.iteration != _BODY:
            return
        self._next = now + _EVERY
        program, inherited = _program(pid), anonymous_of(pid)
        total = 0
        for child in descendants(pid):
            mark = peak_of(child)
            if child not in self._first:
                self._first[child] = min(mark, inherited) if _program(child) == program else 0
            elif mark < self._first[child]:
                self._first[child] = 0
            total += max(0, mark - self._first[child])
        self.peak = max(self.peak, total)


def _program(pid: int) -> bytes:
    """The command line: what `exec` changes and a fork does not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return os.fsencode(str(pid))
