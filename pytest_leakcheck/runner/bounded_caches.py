"""Bounded owners that fill up: the innocent explanation that is looked for before growth is called a leak."""

from __future__ import annotations

import functools
import gc
import linecache
import re
import sys
import weakref
from collections import deque
from collections.abc import Collection, Hashable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import inf
from typing import Any, Final

from pytest_leakcheck.attribution.heap.retained_size import retained
from pytest_leakcheck.attribution.object_inspection import class_name
from pytest_leakcheck.model.resources import Resource, find_resource
from pytest_leakcheck.probes.garbage_collector import FROZEN_BY_PYTHON

_LRU: Final = type(functools.lru_cache(lambda: None))
# In C, what was returned lies in one of these.
_LRU_ENTRY: Final = "_lru_list_elem"
# Of what several owners hold together, one is full only if those that are full hold this share.
_MOST: Final = 0.5


@dataclass(frozen=True, slots=True)
class Filling:
    """What bounded owners have taken in since the start.

    Attributes:
        text: The one that holds most of it, as ``lru_cache of load: 128 of 256``.
        retained: How much of the resource the entries hold that came since the start, in its unit.
        entries: How many these are.
        full: It has reached its bound and takes in no more.
    """

    text: str
    retained: float
    entries: int
    full: bool


@dataclass(slots=True)
class _Start:
    """An owner at the start: how full it was, and whether it was there at all."""

    owner: weakref.ref[Any]
    filled: int
    made_since: bool


class BoundedOwners:
    """Remembers how full each owner was at the start.

    An owner is something with a bound that can be read: a ``functools.lru_cache`` with a ``maxsize``, a ``deque`` with
    a ``maxlen``, a ``ThreadPoolExecutor`` below its ``max_workers``, torch's references to tensors of workers. Taken before
    the collector freezes, since what is frozen is not listed afterwards; costs one walk over the tracked objects (30 ms at half a million).
    """

    def __init__(self) -> None:
        self._start: list[_Start] = []
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

    def restart(self) -> None:
        """The series begins again: only what comes from now on can explain growth."""
        for start in self._start:
            owner = start.owner()
            start.filled, start.made_since = (_fill(owner) or (0, 0, ""))[0], False
        self._views = [(views, len(views.referenced_blocks)) for views, _then in self._views]

    def identities(self) -> frozenset[int]:
        """Of each owner, and of the table in which an ``lru_cache`` has its entries."""
        owners = [owner for start in self._start if (owner := start.owner()) is not None]
        tables = [table for owner in owners if type(owner) is _LRU and (table := _table_of(owner)) is not None]
        return frozenset(map(id, (*owners, *tables)))

    def filling(self, resource: str, identities: Collection[Hashable] = ()) -> Filling | None:
        """What owners that are not full, or have just become so, hold of a resource; None where they hold none.

        Those that were there at the start add up. Of those made since, only the one that holds most counts: where they
        multiply, that is no filling up.

        Args:
            resource: What grew.
            identities: Of descriptors, threads, files and the like: those that are new.
        """
        # Owners made since the start began empty; remembered, since the collector may freeze them next.
        self._remember(gc.get_objects(), new=True)
        found: list[Filling] = []
        of_new: list[Filling] = []
        for start in self._start:
            filling = _gained(start, resource, identities)
            if filling is not None:
                (of_new if start.made_since else found).append(filling)
        found += sorted(of_new, key=lambda one: (-one.retained, -one.entries))[:1]
        found += [filling] if (filling := self._views_of_pandas(resource)) else []
        if not found:
            return None
        total = sum(one.retained for one in found)
        of_full = sum(one.retained for one in found if one.full)
        largest = max(found, key=lambda one: (one.retained, one.entries))
        return Filling(largest.text, total, sum(one.entries for one in found), of_full >= _MOST * total)

    def _views_of_pandas(self, resource: str) -> Filling | None:
        """pandas keeps a weak reference for each view of a table, and clears out the dead ones from 500 on, or later."""
        gained = sum(max(0, len(views.referenced_blocks) - then) for views, then in self._views)
        if find_resource(resource).made_of not in ("objects", "blocks") or not gained:
            return None
        fullest = max((views for views, _then in self._views), key=lambda views: len(views.referenced_blocks))
        text = f"pandas' references to views: {len(fullest.referenced_blocks)} of {fullest.clear_counter}"
        return Filling(text, gained, gained, full=False)

    def _remember(self, objects: Sequence[Any], *, new: bool) -> None:
        known = {id(owner) for start in self._start if (owner := start.owner()) is not None}
        kinds = {id(kind) for kind in (_LRU, deque, _executor(), _shared_by_torch())}
        # `type()` and never `isinstance`, which runs code of lazy proxies; by identity, as to compare classes may, too.
        for candidate in compress(objects, map(kinds.__contains__, map(id, map(type, objects)))):
            if id(candidate) not in known:
                fill = _fill(candidate)
                if fill is not None:
                    self._start.append(_Start(weakref.ref(candidate), 0 if new else fill[0], new))


def _gained(start: _Start, resource: str, identities: Collection[Hashable]) -> Filling | None:
    """What one owner has taken in of a resource; None where that is nothing."""
    owner = start.owner()
    filled, bound, name = _fill(owner) or (0, 0, "")
    gained = filled - start.filled
    if gained <= 0:
        return None
    counted = find_resource(resource)
    if type(owner) is _executor() and counted.handles == "threads":
        holds: float = gained
    elif type(owner) in (_executor(), _shared_by_torch()):
        # Threads and tensors: memory of any amount, and nothing that is closed.
        holds = inf if counted.is_memory else 0
    else:
        holds = retained(resource, _newest(owner, filled, gained), identities) + _overhead(owner, counted, gained)
    return Filling(f"{name}: {filled} of {bound}", holds, gained, filled >= bound) if holds else None


def _newest(owner: Any, filled: int, gained: int) -> list[object]:
    """The entries that came last; of an ``lru_cache`` keys and results."""
    if type(owner) is deque:
        return list(owner)[-gained:]
    table = _table_of(owner)
    # The collector is shown keys and results from the least recently used on, and what else the cache refers to.
    beside = (table, type(owner), getattr(owner, "__wrapped__", None), getattr(owner, "__dict__", None))
    entries = [
        one for one in gc.get_referents(owner) if not any(one is known for known in beside) and not _is_link(one)
    ]
    return entries[-round(len(entries) * gained / filled) :]


def _is_link(one: object) -> bool:
    return type(one) is type and class_name(one) == _LRU_ENTRY


def _table_of(cache: Any) -> dict[Any, Any] | None:
    """The dict in which an ``lru_cache`` looks up its entries."""
    for one in gc.get_referents(cache):
        if type(one) is dict and type(next(iter(one.values()), None)).__name__ == _LRU_ENTRY:
            return one
    return None


def _overhead(owner: Any, resource: Resource, gained: int) -> float:
    """What the owner itself takes for these entries."""
    if type(owner) is deque:
        # 64 entries to a block of 66 pointers (Modules/_collectionsmodule.c).
        return 66 * 8 / 64 * gained if resource.in_python_bytes else 0
    if resource.in_python_bytes:
        table = _table_of(owner) or {}
        return sys.getsizeof(table) * gained / max(1, len(table))
    # An entry of its own for each.
    return gained if resource.made_of == "blocks" else 0


class RefillingCaches:
    """Caches of the standard library that empty on request and refill by themselves: `re` and `linecache`.

    Remembers what was in them at the start, since only what came later can explain growth.
    """

    def __init__(self) -> None:
        self._start = frozenset(_entries())

    def empty(self) -> int:
        """Take out what was not there at the start; return how many entries that were.

        Only done under suspicion: the program then fills the caches again.
        """
        new = [(cache, key) for at, cache in _caches() for key in list(cache) if hash((at, key)) not in self._start]
        for cache, key in new:
            cache.pop(key, None)
        return len(new)


def _caches() -> Iterator[tuple[int, MutableMapping[Any, Any]]]:
    """The caches, numbered. From Python 3.12 on `re` has two, and an entry may be in both."""
    found = (getattr(re, "_cache", None), getattr(re, "_cache2", None), linecache.cache)
    return ((at, cache) for at, cache in enumerate(found) if cache is not None)


def _entries() -> Iterator[int]:
    """A number for each entry: holding the keys themselves would keep what is being measured."""
    return (hash((at, key)) for at, cache in _caches() for key in list(cache))


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
