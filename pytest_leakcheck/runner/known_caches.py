"""Count what known caches gain while a test is screened, so that their new entries do not have it judged in full."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_leakcheck.attribution.heap.retained_size import count_exclusive
from pytest_leakcheck.model.resources import OBJECTS
from pytest_leakcheck.runner.bounded_caches import find_entry_table, known_lru_caches


class KnownCaches:
    """Each bounded ``functools.lru_cache`` that earlier measurements have found, and how many objects it holds.

    A screen takes a few milliseconds, too few to search all objects for caches. Create this object before the harness
    freezes them. A full judgement estimates what caches hold (`BoundedOwners`); here it is exact: the objects that
    exist only because the caches refer to them.
    """

    def __init__(self) -> None:
        self._caches = [(weakref.ref(cache), cache.cache_info().misses) for cache in known_lru_caches()]
        # In an array, because an int object would be a block that the harness allocates in the series.
        self._noted = array("q", (0,))

    def note(self) -> bool:
        """Count what the caches hold now, and return whether that took work. Call it when all garbage is collected."""
        caches = self._find_changed()
        self._noted[0] = _count_held(caches)
        return bool(caches)

    def gains(self) -> Mapping[str, int]:
        """Return how much more of a resource the caches hold than noted, in its unit, if they do."""
        gained = _count_held(self._find_changed()) - self._noted[0]
        return {OBJECTS: gained} if gained > 0 else {}

    def _find_changed(self) -> list[Any]:
        """Return the caches with a miss since they were found; the others have no new entries."""
        return [
            cache
            for known, misses in self._caches
            if (cache := known()) is not None and cache.cache_info().misses != misses
        ]


def _count_held(caches: Sequence[Any]) -> int:
    tables = [table for cache in caches if (table := find_entry_table(cache)) is not None]
    return count_exclusive((*caches, *tables)) if caches else 0
