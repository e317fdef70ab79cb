"""Bounded owners that fill up: the innocent explanation that is looked for before growth is called a leak."""

from __future__ import annotations

import functools
import gc
import linecache
import re
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

_LRU: Final = type(functools.lru_cache(lambda: None))
_KINDS: Final = (_LRU, deque, ThreadPoolExecutor)


@dataclass(frozen=True, slots=True)
class _Watched:
    owner: weakref.ref[Any]
    filled: int


class BoundedOwners:
    """Remembers how full each owner was at the start.

    An owner is something with a bound that can be read: a ``functools.lru_cache`` with a ``maxsize``, a ``deque`` with
    a ``maxlen``, a ``ThreadPoolExecutor`` below its ``max_workers``. Taken before the collector freezes, since what is
    frozen is not listed afterwards; costs one walk over the tracked objects (30 ms at half a million).
    """

    def __init__(self) -> None:
        self._watched = [_Watched(weakref.ref(owner), fill[0]) for owner, fill in _fills(gc.get_objects())]

    def filling(self) -> str:
        """The owner that filled up most since the start and is not full, as ``name: 128 of 256``; empty if none did."""
        known = {id(owner): watched.filled for watched in self._watched if (owner := watched.owner()) is not None}
        owners = [owner for watched in self._watched if (owner := watched.owner()) is not None]
        best, text = 0, ""
        for owner, (filled, bound, name) in _fills([*owners, *gc.get_objects()]):
            gained = filled - known.get(id(owner), 0)
            if filled < bound and gained > best:
                best, text = gained, f"{name}: {filled} of {bound}"
        return text


def empty_caches() -> None:
    """Empty the caches of the standard library that empty on request and refill by themselves.

    What goes with them was a cache and no leak. Only done under suspicion, since the program then fills them again.
    """
    linecache.clearcache()
    re.purge()


def _fills(objects: Iterable[Any]) -> Iterable[tuple[Any, tuple[int, int, str]]]:
    for candidate in objects:
        # `type()` and never `isinstance`, which runs code of lazy proxies.
        kind = type(candidate)
        if kind in _KINDS:
            fill = _fill(candidate, kind)
            if fill is not None:
                yield candidate, fill


def _fill(owner: Any, kind: type) -> tuple[int, int, str] | None:
    if kind is _LRU:
        info = owner.cache_info()
        name = getattr(owner, "__qualname__", "?")
        return None if info.maxsize is None else (info.currsize, info.maxsize, f"lru_cache of {name}")
    if kind is deque:
        return None if owner.maxlen is None else (len(owner), owner.maxlen, "deque(maxlen)")
    return len(owner._threads), owner._max_workers, "ThreadPoolExecutor"
