"""Sample the peak memory of a measured process's children from outside that process."""

from __future__ import annotations

from typing import Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.command_lines import read_command_line
from pytest_leakcheck.probes.memory import anonymous_of, peak_of
from pytest_leakcheck.probes.processes import descendants
from pytest_leakcheck.runner.processes.supervisor import Board

# Seconds between samples. The high-water mark of a child only rises, so the samples miss at most the last moments of
# the child.
_SAMPLE_SECONDS: Final = 0.02
# The value of `Board.iteration` while the test's own body runs.
_BODY_STEP: Final = 2


class ChildrenPeak:
    """The highest sum (`peak`, in bytes) of the high-water marks of all children and descendants alive at one time.

    A forked child begins with its parent's pages, which are not its own memory. So the anonymous memory that the
    measured process has when the child is first seen is subtracted, unless the child has executed another program.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._first: dict[int, int] = {}
        self._next = 0.0

    def look(self, pid: int, board: Board) -> None:
        """Sample the children of a process, if the body of its test runs and the last sample is old enough."""
        now = clock.monotonic()
        if now < self._next or board.iteration != _BODY_STEP:
            return
        self._next = now + _SAMPLE_SECONDS
        program, inherited = read_command_line(str(pid)), anonymous_of(pid)
        total = 0
        for child in descendants(pid):
            mark = peak_of(child)
            if child not in self._first:
                self._first[child] = min(mark, inherited) if read_command_line(str(child)) == program else 0
            elif mark < self._first[child]:
                self._first[child] = 0
            total += max(0, mark - self._first[child])
        self.peak = max(self.peak, total)
