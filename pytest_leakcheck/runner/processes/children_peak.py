"""Sample the memory of the children of a process from outside."""

from __future__ import annotations

from typing import Final

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.memory import anonymous_of, peak_of, resident_of
from pytest_leakcheck.probes.processes import descendants, read_command_line
from pytest_leakcheck.runner.processes.supervisor import BoardView

# Seconds between samples of the children. A child's high-water mark only rises, so that samples
# miss at most its last moments.
_SAMPLE_SECONDS: Final = 0.02
# The value of `Board.iteration` while the test's own body runs; it is lower until then.
_BODY_STEP: Final = 2


class ChildrenPeak:
    """The highest sum (`peak`, in bytes) of the memory of all descendants alive at one time.

    That of a child is its high-water mark. What it has had before the body of the test is
    subtracted. A forked child begins with its parent's pages, which are not its own memory. So the
    anonymous memory that the measured process has when the child is first seen is subtracted,
    unless the child has executed another program.
    """

    def __init__(self) -> None:
        self.peak = 0
        # The memory and the high-water mark of each child just before the body.
        self._before: dict[int, tuple[int, int]] = {}
        self._first: dict[int, int] = {}
        self._next = 0.0

    def look(self, pid: int, board: BoardView) -> None:
        """Sample a process's children, if its test goes on and the last sample is old enough."""
        now = clock.monotonic()
        if now < self._next or board.iteration > _BODY_STEP:
            return
        self._next = now + _SAMPLE_SECONDS
        if board.iteration < _BODY_STEP:
            before = {child: (resident_of(child), peak_of(child)) for child in descendants(pid)}
            if board.iteration < _BODY_STEP:
                self._before = before
            return
        program, inherited = read_command_line(str(pid)), anonymous_of(pid)
        total = 0
        for child in descendants(pid):
            mark = peak_of(child)
            resident, mark_before = self._before.get(child, (0, 0))
            if resident and mark >= mark_before:
                # Its mark tells nothing of the body as long as it is that of an earlier moment.
                total += max(0, (mark if mark > mark_before else resident_of(child)) - resident)
                continue
            if child not in self._first:
                self._first[child] = (
                    min(mark, inherited) if read_command_line(str(child)) == program else 0
                )
            elif mark < self._first[child]:
                self._first[child] = 0
            total += max(0, mark - self._first[child])
        self.peak = max(self.peak, total)
