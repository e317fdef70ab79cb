"""What Python itself holds: objects that the cyclic collector knows, and blocks of the interpreter's allocator."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

from pytest_leakcheck.probes.base import Stateless, Unavailable


class Objects(Stateless):
    """``object``: gc-tracked objects made since ``gc.freeze()`` and still alive.

    Resolution: one object. Noise: none. Cost: below 1 us, whatever the size of the program, since what is frozen is not
    walked. Scope: this process. Does not see: what the collector does not track (bytes, str, numbers, arrays, and on
    Python 3.13 and older dictionaries that hold only such). Fallback: the same everywhere on CPython.
    """

    resource = "object"

    def read(self) -> int:
        return len(gc.get_objects())


# Python 3.13 gave it another name.
_empty_attribute_cache: Callable[[], None] = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache


class Blocks(Stateless):
    """``block``: blocks that the interpreter's small-object allocator has handed out (``sys.getallocatedblocks``).

    Resolution: one object of up to 512 bytes, tracked by the collector or not: bytes, numbers and strings too. Noise:
    below 0.3 per iteration on clean loops of pandas and pyarrow, hence the tolerance. The interpreter's cache of attributes
    keeps up to 4,096 names, and fills by one per iteration for hundreds of them, so it is emptied before each reading.
    Cost: 6 us in a bare process, and it walks all pools: 60 us where torch and pandas are loaded, so it is read rarely
    until it rises (`runner.pacing`).
    Scope: this process. Fallback: none; under ``PYTHONMALLOC=malloc`` there are no blocks, and the heap sees it all.
    """

    resource = "block"

    def open(self) -> None:
        if not sys.getallocatedblocks():
            raise Unavailable("Python's own allocator is off (PYTHONMALLOC); heap_budget sees what it would have")

    def read(self) -> int:
        _empty_attribute_cache()
        return sys.getallocatedblocks()
