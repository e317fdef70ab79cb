"""Python objects that the cyclic collector knows, made since the start."""

from __future__ import annotations

import gc


class Objects:
    """``object``: gc-tracked objects made since ``gc.freeze()`` and still alive.

    Resolution: one object. Noise: none. Cost: 2 to 3 us, whatever the size of the program, since what is frozen is not
    walked. Scope: this process. Does not see: what the collector does not track (bytes, str, numbers, arrays, and on
    Python 3.13 and older dictionaries that hold only such). Fallback: the same everywhere on CPython.
    """

    resources = ("object",)

    def open(self) -> None:
        """Nothing to open: the collector is always there."""

    def read(self) -> tuple[int, ...]:
        return (len(gc.get_objects()),)

    def close(self) -> None:
        """Nothing was opened."""
