"""Find bounded caches that are still filling: an innocent explanation of growth."""

from __future__ import annotations

import gc
import linecache
import re
import sys
import weakref
from array import array
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import compress, islice, zip_longest
from math import inf
from typing import Any, Final

from pytest_leakcheck.attribution.heap.cache_entries import (
    CreatedObjects,
    count_exclusive,
    retained,
)
from pytest_leakcheck.attribution.heap.eviction import Eviction
from pytest_leakcheck.attribution.inspection import (
    LRU,
    LRU_ENTRY_TYPE,
    class_name,
    is_shared,
    last_entries,
    length,
    size_of,
    walk,
)
from pytest_leakcheck.model.culprit import CACHE_OF
from pytest_leakcheck.model.resources import OBJECTS, Resource, find_resource
from pytest_leakcheck.probes.garbage_collector import has_frozen
from pytest_leakcheck.runner.sampler import Sampler

# If several caches together hold the growth, they count as full only if those that are full hold at
# least this share.
_MIN_FULL_SHARE: Final = 0.5
# At most this many of the newest entries are compared with the same number of the oldest ones.
_COMPARED_ENTRIES: Final = 32
# Their references are followed to this depth, or until this many objects have been found.
_MAX_DEPTH: Final = 5
_MAX_COMPARED_PARTS: Final = 20_000
# If older entries remain, new entries that replaced others explain growth only if they outweigh the
# older ones by this factor, in objects or in bytes.
_MIN_WEIGHT_RATIO: Final = 1.1
# With so many entries, a container from which the program removes some is no cache that is filling,
# unless its bound is known. Most defaults are no larger: 500 statements of SQLAlchemy, 300 entries
# of Django's cache, 128 of cachetools.
_MOST_UNDECIDED: Final = 500


@dataclass(frozen=True, slots=True)
class CacheFill:
    """The entries that bounded owners (see `BoundedOwners`) gained or replaced since the start.

    Attributes:
        text: The owner that holds most of the resource, such as ``lru_cache of load: 128 of 256``.
        retained: How much of the resource the new entries hold, in its unit.
        full: Owners that have reached their bound hold at least half of `retained`.
        left: The most entries that one of the owners can still gain.
        at_most: How much of the resource the new entries will hold when all owners are full;
            infinity if unknown.
        is_bounded: Whether all bounds are known.
    """

    text: str
    retained: float
    entries: int
    full: bool
    left: int = 0
    at_most: float = inf
    is_bounded: bool = True


@dataclass(slots=True)
class Pruned:
    """A plain container from which the program removes entries; it began with `filled` ones."""

    container: Any
    name: str
    eviction: Eviction
    filled: int = 0

    @property
    def entries(self) -> int:
        return length(self.container)

    @property
    def most(self) -> int:
        """The number of entries that decides: the bound, if it is known."""
        return self.eviction.bound or _MOST_UNDECIDED


@dataclass(slots=True)
class _OwnerAtStart:
    """The state of an owner at the start."""

    # `mark` identifies its newest entry: the ``id()`` of the last one of a deque, or the misses of
    # an ``lru_cache``. `replaced`: since it was full, all its entries were replaced once. Later
    # ones are as large as those before, so they explain no growth.

    owner: weakref.ref[Any]
    filled: int
    made_since: bool
    mark: int | None
    replaced: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the last measurement knew of the process.

    `owners` are bounded, `views` are pandas' references to views, and `frozen` is how many objects
    the program had frozen.
    """

    owners: tuple[weakref.ref[Any], ...]
    views: list[Any]
    frozen: int


_seen: _Seen | None = None


def _candidates() -> Sequence[Any]:
    """Return the objects to search for owners: at first all, in later measurements young ones."""
    if _seen is not None and gc.get_freeze_count() <= _seen.frozen:
        return [*gc.get_objects(0), *gc.get_objects(1)]
    # The program may have frozen objects itself. Its caches are then listed only while nothing is
    # frozen.
    frozen = has_frozen()
    if frozen:
        # Existing garbage must not be frozen with the rest.
        gc.collect()
        gc.unfreeze()
    objects = gc.get_objects()
    if frozen:
        gc.freeze()
    return objects


def _drop_unused(views: list[Any]) -> list[Any]:
    """Return those that are referred to from outside this list, too."""
    *counts, alone = [sys.getrefcount(one) for one in [*views, object()]]
    return [one for one, count in zip(views, counts, strict=True) if count > alone + 1]


def _find_views(objects: Sequence[Any]) -> list[Any]:
    kind: Any = getattr(sys.modules.get("pandas._libs.internals"), "BlockValuesRefs", None)
    return (
        list(compress(objects, map(id(kind).__eq__, map(id, map(type, objects))))) if kind else []
    )


def _known_owners() -> tuple[Any, ...]:
    """Return the owners that the last measurement knew and that still exist."""
    return (
        tuple(owner for one in _seen.owners if (owner := one()) is not None)
        if _seen is not None
        else ()
    )


class BoundedOwners:
    """The bounded owners of the process, and how full each was at the start.

    An owner is an object with a readable bound: a ``functools.lru_cache`` with a ``maxsize``, a
    ``deque`` with a ``maxlen``, a ``ThreadPoolExecutor``, or torch's references to tensors of
    workers. pandas' references to views are recorded separately. Create this object before the
    harness freezes all others: the collector does not list frozen objects. Only the first of a
    process walks all tracked objects (90 ms for 250,000). Later ones know what the last one knew,
    and list the young objects; what is missing then is found on suspicion (`find_earlier`).
    """

    def __init__(self) -> None:
        self._start: list[_OwnerAtStart] = []
        self._frozen = gc.get_freeze_count()
        # Strong references, as they do not support weak ones. They are small, and go once nothing
        # else refers to them.
        self._views = [
            (one, len(one.referenced_blocks)) for one in _drop_unused(_seen.views if _seen else [])
        ]
        self._pruned: list[Pruned] = []
        self._remember(_known_owners(), new=False)
        self._add(_candidates())

    def _add(self, objects: Sequence[Any], new: Collection[int] = ()) -> None:
        """Record the owners among these objects, but no views that are `new`, by their ``id()``."""
        self._remember(objects, new=False)
        known = {id(views) for views, _then in self._views}.union(new)
        self._views += [
            (views, len(views.referenced_blocks))
            for views in _find_views(objects)
            if id(views) not in known
        ]

    def add_pruned(self, pruned: Pruned) -> bool:
        """Record a container; return whether it may fill longer: it was unknown and is not full."""
        if pruned.entries >= pruned.most or any(
            one.container is pruned.container for one in self._pruned
        ):
            return False
        self._pruned.append(pruned)
        return True

    def count_undecided(self) -> tuple[int, int]:
        """Return the entries that a container of unknown bound has gained, and may still gain."""
        for pruned in self._pruned:
            if not pruned.eviction.bound and pruned.filled < pruned.entries < pruned.most:
                return pruned.entries - pruned.filled, pruned.most - pruned.entries
        return 0, 0

    def find_earlier(self, new: Collection[int]) -> bool:
        """Record what existed at the start and was unknown; return whether there was any.

        Until the series restarts, it counts as empty at the start. Call it while nothing is frozen;
        `new` are the objects of before, by their ``id()``, that were not.
        """
        owners, views = len(self._start), len(self._views)
        self._add(gc.get_objects(), new)
        for start in self._start[owners:]:
            start.filled, start.mark = 0, None
        self._views[views:] = [(one, 0) for one, _now in self._views[views:]]
        return (owners, views) != (len(self._start), len(self._views))

    def keep(self) -> None:
        """Keep the owners for the next measurement; call it before objects are unfrozen."""
        global _seen  # noqa: PLW0603 - what is known of the process outlives a measurement
        self._add(gc.get_objects())
        owners = tuple(start.owner for start in self._start)
        _seen = _Seen(owners, [views for views, _then in self._views], self._frozen)
        self._views = []

    def restart(self) -> None:
        """Take the current state as the start: only entries added from now on explain growth."""
        for start in self._start:
            owner = start.owner()
            filled, bound, _name = _read_fill(owner) or (0, 0, "")
            start.replaced |= start.filled >= bound and _count_new(start, owner, filled) >= bound
            start.filled, start.made_since, start.mark = filled, False, _read_mark(owner)
        for pruned in self._pruned:
            pruned.filled = pruned.entries
        self._views = [(views, len(views.referenced_blocks)) for views, _then in self._views]

    def identities(self) -> frozenset[int]:
        """Return the ``id()`` of each owner, and of the dict of each ``lru_cache``."""
        owners = [owner for start in self._start if (owner := start.owner()) is not None]
        tables = [
            table
            for owner in owners
            if type(owner) is LRU and (table := find_entry_table(owner)) is not None
        ]
        return frozenset(map(id, (*owners, *tables)))

    def filling(
        self,
        resource: str,
        identities: Collection[Hashable] = (),
        created: CreatedObjects | None = None,
    ) -> CacheFill | None:
        """Return how much of a resource the owners' new entries hold; None if they hold nothing.

        Owners that are still filling or have just become full have new entries. Among the owners
        created since the start, only the one that holds most counts, because a growing number of
        owners is not a cache that fills. If the resource counts handles, `identities` are the new
        ones.
        """
        # Owners created since the start began empty. Record them now, because the harness may
        # freeze them next.
        self._remember(gc.get_objects(), new=True)
        found: list[CacheFill] = []
        of_new: list[CacheFill] = []
        created = created or CreatedObjects()
        for start in self._start:
            filling = _measure_gain(start, resource, identities, created)
            if filling is not None:
                (of_new if start.made_since else found).append(filling)
        found += sorted(of_new, key=lambda one: (-one.retained, -one.entries))[:1]
        found += [filling] if (filling := self._measure_pandas_views(resource)) else []
        found += filter(None, (_measure_pruned(one, resource, created) for one in self._pruned))
        if not found:
            return None
        total = sum(one.retained for one in found)
        of_full = sum(one.retained for one in found if one.full)
        largest = max(found, key=lambda one: (one.retained, one.entries))
        return CacheFill(
            largest.text,
            total,
            sum(one.entries for one in found),
            of_full >= _MIN_FULL_SHARE * total,
            max(one.left for one in found),
            sum(one.at_most for one in found),
            all(one.is_bounded for one in found),
        )

    def _measure_pandas_views(self, resource: str) -> CacheFill | None:
        """Return what pandas' weak references to views hold: dead ones stay until there are 500."""
        gained = sum(max(0, len(views.referenced_blocks) - then) for views, then in self._views)
        if find_resource(resource).made_of not in ("objects", "blocks") or not gained:
            return None
        fullest = max(
            (views for views, _then in self._views), key=lambda views: len(views.referenced_blocks)
        )
        text = f"pandas' references to views: {len(fullest.referenced_blocks)} of {fullest.clear_counter}"
        return CacheFill(text, gained, gained, full=False)

    def _remember(self, objects: Sequence[Any], *, new: bool) -> None:
        known = {id(owner) for start in self._start if (owner := start.owner()) is not None}
        kinds = {id(kind) for kind in (LRU, deque, _executor_type(), _torch_cache_type())}
        # `isinstance` would run code of lazy proxies, and comparing classes may run code too. So
        # compare `id(type())`.
        for candidate in compress(objects, map(kinds.__contains__, map(id, map(type, objects)))):
            if id(candidate) not in known:
                fill = _read_fill(candidate)
                if fill is not None:
                    filled, mark = (0, None) if new else (fill[0], _read_mark(candidate))
                    self._start.append(_OwnerAtStart(weakref.ref(candidate), filled, new, mark))


def _measure_gain(
    start: _OwnerAtStart,
    resource: str,
    identities: Collection[Hashable],
    created: CreatedObjects,
) -> CacheFill | None:
    """Return what new entries hold; a full owner may grow until larger ones replaced all once."""
    owner = start.owner()
    filled, bound, name = _read_fill(owner) or (0, 0, "")
    gained = filled - start.filled
    if filled >= bound:
        new = _count_new(start, owner, filled)
        gained = max(
            gained,
            0 if gained <= 0 and (start.replaced or not _outweigh(owner, filled, new)) else new,
        )
    if gained <= 0:
        return None
    counted = find_resource(resource)
    if type(owner) is _executor_type() and counted.handles == "threads":
        holds: float = gained
    elif type(owner) in (_executor_type(), _torch_cache_type()):
        # Threads and tensors may hold any amount of memory, but no handles.
        holds = inf if counted.is_memory else 0
    else:
        holds = retained(
            resource, _list_newest_entries(owner, filled, gained), identities, created
        ) + _measure_overhead(owner, counted, gained)
    text = f"{name}: {filled:,} of {bound:,}"
    left = bound - filled
    return (
        CacheFill(text, holds, gained, filled >= bound, left, holds * (1 + left / gained))
        if holds
        else None
    )


def _measure_pruned(pruned: Pruned, resource: str, created: CreatedObjects) -> CacheFill | None:
    filled, most, by = pruned.entries, pruned.most, pruned.eviction.by
    gained = filled - pruned.filled
    if gained <= 0 or filled > most or not find_resource(resource).is_memory:
        return None
    newest = [part for entry in last_entries(pruned.container, gained) for part in entry]
    holds = retained(resource, newest, (), created)
    if not holds:
        return None
    left = most - filled
    if not pruned.eviction.bound:
        text = (
            f"{by} removes entries from {pruned.name}, which has {filled:,}: {most:,} would decide"
        )
        return CacheFill(text, holds, gained, full=False, left=left, is_bounded=False)
    # A function that makes room before it adds an entry leaves one place.
    text = f"{pruned.name} is kept within its bound by {by}: {filled:,} of {most:,}"
    return CacheFill(text, holds, gained, left <= 1, left, holds * (1 + left / gained))


def _read_mark(owner: Any) -> int | None:
    """Return what identifies an owner's newest entry, for `_count_new`; None if nothing does."""
    if type(owner) is LRU:
        return int(owner.cache_info().misses)
    return id(owner[-1]) if type(owner) is deque and owner else None


def _count_new(start: _OwnerAtStart, owner: Any, filled: int) -> int:
    """Return how many entries of an owner were added since the start, as far as can be seen."""
    if type(owner) is LRU:
        misses = owner.cache_info().misses - (start.mark or 0)
        return min(filled, misses if misses >= 0 else filled)
    if type(owner) is not deque:
        return max(0, filled - start.filled)
    if start.mark is None:
        return filled
    # Copy the deque in one step, because another thread may change it meanwhile.
    return next(
        (at for at, one in enumerate(reversed(list(owner))) if id(one) == start.mark), filled
    )


def _outweigh(owner: Any, filled: int, new: int) -> bool:
    """Return whether the newest entries are larger than the oldest, or no older ones are left."""
    if not 0 < new < filled:
        return new > 0
    entries = _list_newest_entries(owner, filled, filled)
    count = min(_COMPARED_ENTRIES, new, filled - new) * len(entries) // filled
    newest, oldest = _find_own_parts(entries[-count:], entries[:count])
    return any(
        new > _MIN_WEIGHT_RATIO * old
        for new, old in zip(_weigh(newest), _weigh(oldest), strict=True)
    )


def _find_own_parts(
    newest: Sequence[object], oldest: Sequence[object]
) -> tuple[list[object], list[object]]:
    """Return the parts of the newest and those of the oldest entries, without those in both."""
    new: dict[int, object] = {}
    old: dict[int, object] = {}
    levels = zip_longest(
        *(walk(some, _is_own, _MAX_COMPARED_PARTS) for some in (newest, oldest)), fillvalue={}
    )
    for of_newest, of_oldest in islice(levels, 1 + _MAX_DEPTH):
        new |= of_newest
        old |= of_oldest
        if max(len(new), len(old)) >= _MAX_COMPARED_PARTS:
            break
    common = new.keys() & old.keys()
    return [part for at, part in new.items() if at not in common], [
        part for at, part in old.items() if at not in common
    ]


def _is_own(part: object) -> bool:
    # CPython keeps one object for each small number, and makes one whenever it computes another.
    return not is_shared(part) and not (type(part) is int and part is part + 0)


def _weigh(parts: Sequence[object]) -> tuple[int, int]:
    """Return the number of these objects, and roughly their bytes."""
    return len(parts), sum(map(size_of, parts))


def _list_newest_entries(owner: Any, filled: int, gained: int) -> list[object]:
    """Return the newest entries; for an ``lru_cache``, their keys and results."""
    if type(owner) is deque:
        return list(owner)[-gained:]
    table = find_entry_table(owner)
    # The referents of the cache are its keys and results, from the least recently used on, and a
    # few other objects.
    others = (
        table,
        type(owner),
        getattr(owner, "__wrapped__", None),
        getattr(owner, "__dict__", None),
    )
    entries = [
        part
        for part in gc.get_referents(owner)
        if not any(part is known for known in others)
        and not (type(part) is type and class_name(part) == LRU_ENTRY_TYPE)
    ]
    # A key and a result per entry come first.
    entries = entries[: 2 * filled]
    return entries[-round(len(entries) * gained / filled) :]


def find_entry_table(cache: Any) -> dict[Any, Any] | None:
    """Return the dict in which an ``lru_cache`` looks up its entries; None if it is empty."""
    for part in gc.get_referents(cache):
        if type(part) is dict and type(next(iter(part.values()), None)).__name__ == LRU_ENTRY_TYPE:
            return part
    return None


def _measure_overhead(owner: Any, resource: Resource, gained: int) -> float:
    """Return how much of the resource the owner itself uses for these entries."""
    if type(owner) is deque:
        # A deque stores 64 entries in each block of 66 pointers of 8 bytes
        # (Modules/_collectionsmodule.c).
        return 66 * 8 / 64 * gained if resource.in_python_bytes else 0
    if resource.in_python_bytes:
        table = find_entry_table(owner) or {}
        return sys.getsizeof(table) * gained / max(1, len(table))
    # An ``lru_cache`` allocates one link object per entry.
    return gained if resource.made_of == "blocks" else 0


class EmptiedCaches:
    """The caches of `re` and `linecache`, which can be emptied and refill.

    Entries from the start of the series explain no growth.
    """

    def __init__(self) -> None:
        # Hashes, because references to the keys would retain what is being measured.
        self._start = frozenset(
            hash((at, key)) for at, cache in _list_caches() for key in list(cache)
        )
        # The sizes of the entries that were emptied, and how far each counter fell by that. The
        # fall is attributed to the harness: the series continues as if these still existed.
        self._sizes: list[int] = []
        self._falls: Counter[str] = Counter()

    def explain(self, sampler: Sampler, name: str) -> bool:
        """Return whether most growth of memory is in the caches; empty them to see it."""
        if find_resource(name).scarce:
            return False
        if not self._hold(sampler, name) and (sizes := self.empty()):
            self._sizes += sizes
            for one in sampler.samples.columns:
                if not find_resource(one).scarce:
                    self._falls[one] += sampler.came_down(one)
        return self._hold(sampler, name)

    def _hold(self, sampler: Sampler, name: str) -> bool:
        """Return whether emptied entries, and new ones like them, are most of the growth."""
        sizes = [*self._sizes, *(size_of(cache.get(key)) for cache, key in self._list_new())]
        held = self._falls[name] * sum(sizes) / max(1, sum(self._sizes))
        # A few entries do not explain many rises. If the counter falls nevertheless, the cause is
        # another one, such as an arena of the interpreter's allocator that became free: 1 MiB of
        # mapped memory at once.
        enough = 2 * len(sizes) >= sampler.samples.rises(name)
        return enough and 2 * held >= sampler.samples.above_start(name) > 0

    def empty(self) -> list[int]:
        """Remove the entries added since the start, and return the size of each."""
        return [size_of(cache.pop(key, None)) for cache, key in self._list_new()]

    def _list_new(self) -> list[tuple[MutableMapping[Any, Any], Any]]:
        return [
            (cache, key)
            for at, cache in _list_caches()
            for key in list(cache)
            if hash((at, key)) not in self._start
        ]


def _list_caches() -> Iterator[tuple[int, MutableMapping[Any, Any]]]:
    """Yield numbered caches; from Python 3.12 on, `re` has two, and an entry may be in both."""
    found = (getattr(re, "_cache", None), getattr(re, "_cache2", None), linecache.cache)
    return ((at, cache) for at, cache in enumerate(found) if cache is not None)


def _read_fill(owner: Any) -> tuple[int, int, str] | None:
    """Return the number of entries, the bound and the name of an owner; None if it has no bound."""
    kind = type(owner)
    if kind is LRU:
        info = owner.cache_info()
        name = getattr(owner, "__qualname__", "?")
        return None if info.maxsize is None else (info.currsize, info.maxsize, f"{CACHE_OF}{name}")
    if kind is deque:
        return None if owner.maxlen is None else (len(owner), owner.maxlen, "deque(maxlen)")
    if kind is _executor_type():
        return len(owner._threads), owner._max_workers, "ThreadPoolExecutor"
    if kind is _torch_cache_type():
        return len(owner), owner.limit, "torch's references to shared storages"
    return None


def _executor_type() -> Any:
    return getattr(sys.modules.get("concurrent.futures.thread"), "ThreadPoolExecutor", None)


def _torch_cache_type() -> Any:
    """Return the type of torch's dict that keeps references to workers' tensors up to a limit."""
    return getattr(sys.modules.get("torch.multiprocessing.reductions"), "SharedCache", None)


def tracers_of_coverage() -> int:
    """Count coverage.py's tracers; while it measures, it keeps one for each thread ever started."""
    coverage: Any = sys.modules.get("coverage")
    if coverage is None:
        return 0
    collector = getattr(coverage.Coverage.current(), "_collector", None)
    return len(getattr(collector, "tracers", ()))


class KnownCaches:
    """Each bounded ``functools.lru_cache`` of earlier measurements, and how many objects it holds.

    A screen takes a few milliseconds, too few to search all objects for caches. Create this object
    before the harness freezes them. A full judgement estimates what caches hold (`BoundedOwners`);
    here it is exact: the objects that exist only because the caches refer to them.
    """

    def __init__(self) -> None:
        caches = [owner for owner in _known_owners() if type(owner) is LRU]
        self._caches = [(weakref.ref(cache), cache.cache_info().misses) for cache in caches]
        # In an array, because an int object would be a block that the harness allocates in the
        # series.
        self._noted = array("q", (0,))

    def note(self) -> bool:
        """Count what the caches hold now, and return whether that took work.

        Call it when all garbage is collected.
        """
        caches = self._find_changed()
        self._noted[0] = _count_held(caches)
        return bool(caches)

    def gains(self) -> Mapping[str, int]:
        """Return how much more of a resource the caches hold than noted, in its unit, if any."""
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
