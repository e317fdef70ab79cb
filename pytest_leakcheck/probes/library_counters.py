"""Counters that a library keeps of itself, where the program has loaded it."""

from __future__ import annotations

import sys
from typing import Any

from pytest_leakcheck.probes.base import NotInUse, Unavailable


class ArrowPool:
    """``arrow``: bytes in pyarrow's memory pools, which malloc's counters do not see.

    Resolution: one byte. Noise: none. Cost: 0.1 us. Scope: this process. Fallback: none; unavailable where pyarrow is
    not loaded.
    """

    resource = "arrow"

    def open(self) -> None:
        pyarrow: Any = sys.modules.get("pyarrow")
        if pyarrow is None:
            raise NotInUse("pyarrow is not loaded by the end of warm-up: there is no pool to read")
        self._read = pyarrow.total_allocated_bytes

    def read(self) -> int:
        return int(self._read())

    def close(self) -> None:
        """Nothing was opened."""


class Tasks:
    """``task``: asyncio tasks that are alive, on any loop: pending, or done and still referred to.

    Resolution: one. Noise: none once the loop has run; tasks that are about to end are waited for. Cost: 0.2 us. Scope:
    this process. Does not see: tasks of other frameworks. Fallback: none; unavailable where asyncio is not loaded, and
    from Python 3.14 on, which keeps tasks per thread and out of reach.
    """

    resource = "task"

    def open(self) -> None:
        tasks: Any = sys.modules.get("asyncio.tasks")
        if tasks is None:
            raise NotInUse("asyncio is not loaded by the end of warm-up: there are no tasks to count")
        # One weak set up to 3.11; from 3.12 on, tasks that ran eagerly are in a set of their own.
        known = [getattr(tasks, name, None) for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks")]
        self._sets = tuple(one for one in known if one is not None)
        if not self._sets or sys.version_info >= (3, 14):
            raise Unavailable(
                f"asyncio of Python {sys.version_info[0]}.{sys.version_info[1]} keeps its tasks out of reach"
            )

    def read(self) -> int:
        alive = 0
        for tasks in self._sets:
            alive += len(tasks)
        return alive

    def close(self) -> None:
        """Nothing was opened."""
