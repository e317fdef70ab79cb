"""Read counters of interpreter and loaded libraries: objects, blocks, tasks, Arrow's pool."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import compress, repeat
from typing import Any, Final
from weakref import WeakSet

from pytest_leakcheck.probes.base import NotInUse, Stateless, Unavailable

# The largest block that the interpreter serves from pools of its own (Objects/obmalloc.c); larger
# ones come from malloc, which counts no pool.
MAX_POOL_BYTES: Final = 512


class Objects(Stateless):
    """``object``: live gc-tracked objects created since ``gc.freeze()``.

    Resolution: one object. Noise: none. Cost: below 1 us, because frozen objects are not walked.
    Scope: this process. Not counted: objects that the collector does not track (bytes, str,
    numbers, numpy arrays, and up to Python 3.13 dictionaries of only these).
    """

    resource = "object"

    def read(self) -> int:
        return len(gc.get_objects())


# Python 3.13 renamed `sys._clear_type_cache` to `sys._clear_internal_caches`.
_empty_attribute_cache: Callable[[], None] = (
    getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
)


class Blocks(Stateless):
    """``block``: blocks handed out by the allocator for small objects (``sys.getallocatedblocks``).

    Resolution: one object of up to 512 bytes, tracked by the collector or not, such as bytes,
    numbers and strings. Noise: below 0.3 per iteration on clean loops of pandas and pyarrow, hence
    the tolerance. The interpreter's attribute cache gains up to 4,096 names, one per iteration for
    hundreds of iterations, so it is emptied before each reading. Cost: 6 us in a bare process, 60
    us with torch and pandas loaded, because all pools are walked, so it is read rarely until it
    rises (`runner.readings`). Scope: this process. Fallback: none; under ``PYTHONMALLOC=malloc``
    there are no blocks, and ``heap`` counts all memory.
    """

    resource = "block"

    def open(self) -> None:
        if not sys.getallocatedblocks():
            raise Unavailable(
                "Python's own allocator is disabled (PYTHONMALLOC); heap_budget counts these blocks instead"
            )

    def read(self) -> int:
        _empty_attribute_cache()
        return sys.getallocatedblocks()


class ArrowPool(Stateless):
    """``arrow``: bytes in pyarrow's default memory pool, which malloc's counter does not include.

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


def _task_sets() -> tuple[Collection[Any], ...]:
    tasks = sys.modules.get("asyncio.tasks")
    # Up to Python 3.11 there is one weak set of tasks. From 3.12 on, eagerly started tasks are in a
    # separate set. From 3.14 on, both contain only tasks of other implementations than the
    # interpreter's own.
    known = [
        getattr(tasks, name, None) for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
    ]
    return tuple(one for one in known if one is not None)


def _unlisted_class() -> type[Any] | None:
    """Return the class of tasks that are in no set; None up to Python 3.13 or without asyncio."""
    native: Any = sys.modules.get("_asyncio")
    return native.Task if native is not None and sys.version_info >= (3, 14) else None


def with_subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield a class and all below it."""
    yield kind
    below: list[type[Any]] = type.__subclasses__(kind)
    for subclass in below:
        yield from with_subclasses(subclass)


# What `list_tasks` has found in no set: the collector lists it no more once `gc.freeze` was called.
_found: Final[WeakSet[Any]] = WeakSet()


def list_tasks() -> list[Any]:
    """Return the live asyncio tasks; none if asyncio is not loaded.

    From Python 3.14 on, those that were frozen before the first call are left out. Cost there: 30
    ns for each object that the collector lists, because tasks are found among these.
    """
    if (unlisted := _unlisted_class()) is not None:
        objects = gc.get_objects()
        _found.update(compress(objects, map(issubclass, map(type, objects), repeat(unlisted))))
    return [task for some in (*_task_sets(), _found) for task in list(some)]


class Tasks(Stateless):
    """``task``: live asyncio tasks of all loops, pending, or finished and still referenced.

    Resolution: one. Noise: none once the loop has run; the plugin waits for tasks that are about to
    end. Cost: 0.2 us. Scope: this process. Not counted: tasks of other frameworks.

    Python 3.14 and later keep the tasks of each thread where Python code cannot read them. There
    the probe counts the references to their class, one of which each task holds, since it was
    opened: exact, unless the program keeps the class itself in ever more places, which would count
    as well. Tasks of a subclass are counted if it existed at opening. Unavailable without the
    global lock, where these references are not counted at once.
    """

    resource = "task"

    def open(self) -> None:
        if "asyncio.tasks" not in sys.modules:
            raise NotInUse(
                "asyncio is not loaded by the end of warm-up: there are no tasks to count"
            )
        self._sets = _task_sets()
        unlisted = _unlisted_class()
        if unlisted is not None and "t" in sys.abiflags:
            raise Unavailable(
                "a free-threaded Python does not expose asyncio's tasks, nor count them at once"
            )
        self._classes = tuple(with_subclasses(unlisted)) if unlisted is not None else ()
        self._references = 0
        self._references = self.read() if self._classes else 0

    def read(self) -> int:
        alive = -self._references
        for tasks in self._sets:
            alive += len(tasks)
        for kind in self._classes:
            alive += sys.getrefcount(kind)
        return alive
