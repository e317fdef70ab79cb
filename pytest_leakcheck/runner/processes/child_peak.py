"""Sample the peak memory of a measured process's children from outside that process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.memory import anonymous_of, peak_of
from pytest_leakcheck.probes.processes import descendants
from pytest_leakcheck.runner.processes.supervisor import Board

# Seconds between samples. A child's high-water mark only rises, so a sample misses at most its last moments.
_SAMPLE_SECONDS: Final = 0.02
# The value of `Board.iteration` while the test's own body runs.
_BODY_STEP: Final = 2


class ChildrenPeak:
    """The highest sum of the high-water marks of all children alive at one time.

    A forked child begins with its parent's pages, which are not its own memory. The anonymous memory of the measured
    process when the child is first seen is therefore subtracted, unless the child has executed another program since.

    Attributes:
        peak: The highest sum so far, in bytes.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._first: dict[int, int] = {}
        self._next = 0.0

    def look(self, pid: int, board: Board) -> None:
        """Sample the children of this process, if its test's body runs and the last sample is old enough."""
        now = time.monotonic()
        if now < self._next or board.iteration != _BODY_STEP:
            return
        self._next = now + _SAMPLE_SECONDS
        program, inherited = _command_line(pid), anonymous_of(pid)
        total = 0
        for child in descendants(pid):
            mark = peak_of(child)
            if child not in self._first:
                self._first[child] = min(mark, inherited) if _command_line(child) == program else 0
            elif mark < self._first[child]:
                self._first[child] = 0
            total += max(0, mark - self._first[child])
        self.peak = max(self.peak, total)


def _command_line(pid: int) -> bytes:
    """Return the command line, which `exec` changes and a fork does not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return os.fsencode(str(pid))
