"""Read counters that a library keeps of its own memory or tasks, if the program has loaded the library."""

from __future__ import annotations

import sys
from typing import Any

from pytest_leakcheck.probes.base import NotInUse, Stateless, Unavailable


class ArrowPool(Stateless):
    """``arrow``: bytes in pyarrow's default memory pool, which the counter of malloc does not include.

    Resolution: one byte. Noise: none. Cost: 0.1 us. Scope: this process.
    """

    resource = "arrow"

    def open(self) -> None:
        pyarrow: Any = sys.modules.get("pyarrow")
        if pyarrow is None:
            raise NotInUse("pyarrow is not loaded by the end of warm-up: there is no pool to read")
        self._read = pyarrow.total_allocated_bytes

    def read(self) -> int:
        return int(self._read())


class Tasks(Stateless):
    """``task``: live asyncio tasks of all loops, pending, or finished and still referenced.

    Resolution: one. Noise: none once the loop has run; the plugin waits for tasks that are about to end. Cost: 0.2 us.
    Scope: this process. Not counted: tasks of other frameworks. Unavailable from Python 3.14 on, which keeps the
    tasks of each thread where Python code cannot read them.
    """

    resource = "task"

    def open(self) -> None:
        tasks: Any = sys.modules.get("asyncio.tasks")
        if tasks is None:
            raise NotInUse("asyncio is not loaded by the end of warm-up: there are no tasks to count")
        # Up to Python 3.11 there is one weak set of tasks. From 3.12 on, eagerly started tasks are in a separate set.
        known = [getattr(tasks, name, None) for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks")]
        self._sets = tuple(one for one in known if one is not None)
        if not self._sets or sys.version_info >= (3, 14):
            raise Unavailable(
                f"asyncio of Python {sys.version_info[0]}.{sys.version_info[1]} does not expose its tasks"
            )

    def read(self) -> int:
        alive = 0
        for tasks in self._sets:
            alive += len(tasks)
        return alive
