"""A test that forks and comes back in both processes: the child must not repeat it, or processes would double each time."""

from __future__ import annotations

import os


class Origin:
    """The process that a measurement began in."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def leave_elsewhere(self, status: int = 0) -> None:
        """In any other process, end that at once: no tear-down, no report, no exit handlers, as in a child that `_exit`s.

        Args:
            status: What it ends with.
        """
        if os.getpid() == self._pid:
            return
        text = (
            f"pytest-leakcheck: process {os.getpid()} was forked in a measured test (of process {self._pid}) and came back "
            "from it; only the process that began the measurement goes on, so this one ends here: call os._exit() in "
            "the child, inside the test\n"
        )
        try:
            os.write(2, text.encode())
        finally:
            os._exit(status)
