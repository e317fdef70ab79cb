"""Count objects tracked by the garbage collector, and allocator blocks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from pytest_leakcheck.probes.base import Stateless, Unavailable


class Objects(Stateless):
    """``object``: live gc-tracked objects created since ``gc.freeze()``.

    Resolution: one object. Noise: none. Cost: below 1 us, because frozen objects are not walked. Scope: this process.
    Not counted: objects that the collector does not track (bytes, str, numbers, numpy arrays, and up to Python 3.13
    dictionaries of only these).
    """

    resource = "object"

    def read(self) -> int:
        return len(gc.get_objects())


# Python 3.13 renamed `sys._clear_type_cache` to `sys._clear_internal_caches`.
_empty_attribute_cache: Callable[[], None] = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache


class Blocks(Stateless):
    """``block``: blocks that the interpreter's allocator for small objects has handed out (``sys.getallocatedblocks``).

    Resolution: one object of up to 512 bytes, tracked by the collector or not, such as bytes, numbers and strings.
    Noise: below 0.3 per iteration on clean loops of pandas and pyarrow, hence the tolerance. The interpreter's
    attribute cache gains up to 4,096 names, one per iteration for hundreds of iterations, so it is emptied before each
    reading. Cost: 6 us in a bare process, 60 us with torch and pandas loaded, because all pools are walked, so it is
    read rarely until it rises (`runner.readings`). Scope: this process. Fallback: none; under ``PYTHONMALLOC=malloc``
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
