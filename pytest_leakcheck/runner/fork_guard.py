"""End a forked child that returns from a measured test: repeating it would double the processes in each iteration."""

from __future__ import annotations

# The functions themselves: a test may replace those of the module, and must then neither seem to be another process nor
# end the session.
from os import _exit, getpid, write


class Origin:
    """The process in which a measurement began."""

    def __init__(self) -> None:
        self._pid = getpid()

    def leave_elsewhere(self, status: int = 0) -> None:
        """End the current process at once unless it is the original one: no tear-down, no exit handler, no report."""
        if getpid() == self._pid:
            return
        text = (
            f"pytest-leakcheck: process {getpid()} was forked in a measured test (of process {self._pid}) and returned "
            "from it; only the process that started the measurement may continue, so this one exits: call os._exit() "
            "in the child, inside the test\n"
        )
        try:
            write(2, text.encode())
        finally:
            _exit(status)
