"""Bounded owners that fill up: the innocent explanation that is looked for before growth is called a leak."""

from __future__ import annotations

import functools
import gc
import linecache
import re
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import compress
from typing import Any, Final

from pytest_leakcheck.probes.collector import FROZEN_BY_PYTHON

_LRU: Final = type(functools.lru_cache(lambda: None))
# Values that hold nothing but themselves; an int may be a descriptor.
_PLAIN: Final = (str, bytes, float, complex, bool, type(None), type)
_SAMPLE: Final = 64
# An entry may come with any amount of these.
_ANY_SIZE: Final = ("heap", "object", "block", "arrow", "mmap", "rss", "vram")


class BoundedOwners:
    """Remembers how full each owner was at the start.

    An owner is something with a bound that can be read: a ``functools.lru_cache`` with a ``maxsize``, a ``deque`` with
    a ``maxlen``, a ``ThreadPoolExecutor`` below its ``max_workers``, torch's references to tensors of workers. Taken before
    the collector freezes, since what is frozen is not listed afterwards; costs one walk over the tracked objects (30 ms at half a million).
    """

    def __init__(self) -> None:
        self._start: list[tuple[weakref.ref[Any], int]] = []
        # A program may have frozen its own: what holds its caches is then listed only while it is not.
        frozen = gc.get_freeze_count() > FROZEN_BY_PYTHON
        if frozen:
            # What is garbage by now must not be frozen with the rest.
            gc.collect()
            gc.unfreeze()
        objects = gc.get_objects()
        self._remember(objects, new=False)
        # Not to be referred to weakly; so small that it does not matter that they are held.
        kind: Any = getattr(sys.modules.get("pandas._libs.internals"), "BlockValuesRefs", None)
        views = (one for one in objects if type(one) is kind) if kind else ()
        self._views = [(one, len(one.referenced_blocks)) for one in views]
        del objects
        if frozen:
            gc.freeze()

    def filling(self, resource: str, grown: int, rises: int) -> str:
        """The owner whose filling up explains the growth, as ``name: 128 of 256``; empty if none does.

        It explains it if it is not full, can hold such a thing at all, and took in at least half as many entries as a
        counter of things rose by; or, for memory and objects, which come in any size, half as many as it rose times.

        Args:
            resource: What grew.
            grown: By how much it stands above the start.
            rises: In how many iterations it rose.
        """
        # Owners made since the start began empty; remembered, since the collector may freeze them next.
        self._remember(gc.get_objects(), new=True)
        least = max(1, (rises if resource in _ANY_SIZE else grown) // 2)
        best, text = 0, ""
        for reference, filled_then in self._start:
            owner = reference()
            filled, bound, name = _fill(owner) or (0, 0, "")
            gained = filled - filled_then
            if filled < bound and gained >= least and gained > best and _can_hold(owner, resource):
                best, text = gained, f"{name}: {filled} of {bound}"
        return text or self._views_of_pandas(resource, grown)

    def _views_of_pandas(self, resource: str, grown: int) -> str:
        """pandas keeps a weak reference for each view of a table, and clears out the dead ones from 500 on, or later."""
        gained = sum(max(0, len(views.referenced_blocks) - then) for views, then in self._views)
        if resource not in ("object", "block") or 2 * gained < grown or not gained:
            return ""
        fullest = max((views for views, _then in self._views), key=lambda views: len(views.referenced_blocks))
        return f"pandas' references to views: {len(fullest.referenced_blocks)} of {fullest.clear_counter}"

    def _remember(self, objects: Sequence[Any], *, new: bool) -> None:
        known = {id(owner) for reference, _filled in self._start if (owner := reference()) is not None}
        kinds = {id(kind) for kind in (_LRU, deque, _executor(), _shared_by_torch())}
        # `type()` and never `isinstance`, which runs code of lazy proxies; by identity, as to compare classes may, too.
        for candidate in compress(objects, map(kinds.__contains__, map(id, map(type, objects)))):
            if id(candidate) not in known:
                fill = _fill(candidate)
                if fill is not None:
                    self._start.append((weakref.ref(candidate), 0 if new else fill[0]))


def _can_hold(owner: Any, resource: str) -> bool:
    """Whether it could be what holds such things. The values of an ``lru_cache`` cannot be looked at from outside."""
    if resource in _ANY_SIZE:
        return True
    if type(owner) is _executor():
        return resource == "thread"
    return type(owner) is not deque or not all(type(value) in _PLAIN for value in list(owner)[-_SAMPLE:])


class RefillingCaches:
    """Caches of the standard library that empty on request and refill by themselves: `re` and `linecache`.

    Remembers what was in them at the start, since only what came later can explain growth.
    """

    def __init__(self) -> None:
        self._start = frozenset(_entries())

    def empty(self) -> float:
        """Empty them. Only done under suspicion, since the program then fills them again.

        Returns:
            The share of the entries that was not there at the start, 0 to 1.
        """
        now = _entries()
        fresh = sum(1 for entry in now if entry not in self._start)
        linecache.clearcache()
        re.purge()
        return fresh / len(now) if now else 0.0


def _entries() -> list[int]:
    """A number for each entry: holding the keys themselves would keep what is being measured."""
    caches = (getattr(re, "_cache", {}), linecache.cache)
    return [hash((at, key)) for at, cache in enumerate(caches) for key in list(cache)]


def _fill(owner: Any) -> tuple[int, int, str] | None:
    """How full it is, its bound, and what it is called; None where it has no bound."""
    kind = type(owner)
    if kind is _LRU:
        info = owner.cache_info()
        name = getattr(owner, "__qualname__", "?")
        return None if info.maxsize is None else (info.currsize, info.maxsize, f"lru_cache of {name}")
    if kind is deque:
        return None if owner.maxlen is None else (len(owner), owner.maxlen, "deque(maxlen)")
    if kind is _executor():
        return len(owner._threads), owner._max_workers, "ThreadPoolExecutor"
    if kind is _shared_by_torch():
        return len(owner), owner.limit, "torch's references to shared storages"
    return None


def _executor() -> Any:
    return getattr(sys.modules.get("concurrent.futures.thread"), "ThreadPoolExecutor", None)


def _shared_by_torch() -> Any:
    """The type of the dict in which torch keeps a reference to each tensor that came from a worker, until it has too many."""
    return getattr(sys.modules.get("torch.multiprocessing.reductions"), "SharedCache", None)


def tracers_of_coverage() -> int:
    """How many tracers coverage.py keeps: one for each thread that was ever started while it measures."""
    coverage: Any = sys.modules.get("coverage")
    if coverage is None:
        return 0
    collector = getattr(coverage.Coverage.current(), "_collector", None)
    return len(getattr(collector, "tracers", ()))
