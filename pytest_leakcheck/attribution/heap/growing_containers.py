"""Find the containers and single values that grow between two moments.

The garbage collector does not track bytes, strings, numbers and NumPy arrays, nor a dict that holds
nothing else: only the number of entries of their container shows that there are new ones. A string
or an array may also be replaced by a longer one, so the sizes of the large values of each holder
are recorded too.
"""

from __future__ import annotations

import gc
import operator
import sys
import types
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, filterfalse, repeat
from typing import Any, Final

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.probes.runtime_counters import with_subclasses

# Number of objects whose referents are read in one call into C.
_CHUNK_SIZE: Final = 1024
# Size of the largest value, in bytes, that is not recorded: most strings are names.
_MAX_SMALL_VALUE: Final = 200
# What may be retained lies between these multiples of the expected number: an entry may hold
# several of the retained objects, or half of one.
LEAST: Final = 0.5
MOST: Final = 2.0
# If some containers have gained the expected number of entries, give or take this share of it, the
# others are dropped.
_NEAR_SHARE: Final = 0.25
# Minimum number of entries that a container must gain, if at least this many are expected.
_MIN_ENTRIES: Final = 2
# Sizes that differ by more than this factor belong to different objects. Allocators round, and
# count their overhead.
MAX_SIZE_RATIO: Final = 4.0
_CONTAINER_TYPE_IDS: Final = frozenset(map(id, inspection.CONTAINERS))
# Types whose referents are not read. Functions are a quarter of all objects, and the collector
# itself lists those parts of them that can grow, as well as the dict of a module. Descriptors refer
# to names and classes.
_SKIPPED_TYPE_IDS: Final = frozenset(
    map(id, (types.FunctionType, types.ModuleType, *inspection.C_DESCRIPTOR_TYPES))
)
_VALUE_TYPE_IDS: Final = frozenset(map(id, inspection.PAYLOAD))


@dataclass(frozen=True, slots=True, eq=False)
class GrowingContainer:
    """A container that gained entries, or a holder of a `value` that gained bytes or characters."""

    holder: object
    gained: int
    value: object = None

    @property
    def is_value(self) -> bool:
        return self.value is not None


class Census:
    """The size of each container at one moment; it keeps no object alive.

    Take it while nothing is frozen.
    """

    __slots__ = ("_amounts", "_first", "_holders", "_ids", "_kinds", "_sizes", "_values", "more")

    def __init__(self, *, values: bool) -> None:
        """Record the sizes of all containers.

        With `values`, also those of large values, which takes three times as long.
        """
        self._values = values
        found = _walk(values=values)
        self._ids, self._sizes, self._kinds = found.ids, found.sizes, found.kinds
        # How many more tracked objects of a type there were when `grown` was last called, by the
        # type's ``id()``.
        self.more: Counter[int] = Counter()
        # An ``id()`` may be reused: an untracked dict that begins with another key is another dict.
        self._first = array(
            "Q", map(id, map(_first_key, found.containers[len(found.ids) - found.untracked :]))
        )
        self._holders = array("Q", (id(holder) for holder, values in found.holders for _ in values))
        self._amounts = array(
            "q", (inspection.amount(value) for _holder, values in found.holders for value in values)
        )

    def grown(
        self, new: Collection[int] = frozenset(), ignore: Collection[int] = frozenset()
    ) -> tuple[GrowingContainer, ...]:
        """Return the containers and values that are larger now, without those in `ignore`.

        The `newcomers`, `new`, did not exist at the census, except for dicts that were untracked
        then. Both `new` and `ignore` are by ``id()``.
        """
        found = _walk(values=self._values, known=frozenset(self._holders))
        self.more = found.kinds - self._kinds
        then = dict(zip(self._ids, self._sizes, strict=True))
        # A container that was not counted before has not grown.
        larger = [
            GrowingContainer(holder, size - then[place])
            for holder, place, size in zip(found.containers, found.ids, found.sizes, strict=True)
            if size > then.get(place, size)
        ]
        first = dict(zip(reversed(self._ids), reversed(self._first), strict=False))
        same = (
            container
            for container in larger
            if id(container.holder) not in ignore
            and _is_same_container(container.holder, first.get(id(container.holder)), new)
        )
        return (
            *same,
            *self._grown_values(
                found.holders, {*(id(one.holder) for one in larger), *new, *ignore}
            ),
        )

    def _grown_values(
        self, holders: Sequence[tuple[object, list[object]]], ignore: Collection[int]
    ) -> Iterator[GrowingContainer]:
        """Yield the values that are larger now, except those of the holders in `ignore`."""
        then: dict[int, list[int]] = {}
        for place, size in zip(self._holders, self._amounts, strict=True):
            then.setdefault(place, []).append(size)
        for holder, values in holders:
            before = then.get(id(holder), ())
            # They are matched by position, which is impossible if a value has become large or is
            # gone.
            if len(before) == len(values) and id(holder) not in ignore:
                for size, value in zip(before, values, strict=True):
                    if (gained := inspection.amount(value) - size) > 0:
                        yield GrowingContainer(holder, gained, value)


def _first_key(container: Any) -> object:
    return next(iter(container), None)


def _is_same_container(holder: object, first: int | None, new: Collection[int]) -> bool:
    """Return whether this holder was counted; `first`: its first key's ``id()``, if untracked."""
    # The collector also lists an older dict as new once it begins to track that dict.
    if first is None or type(holder) is not dict:
        return id(holder) not in new and gc.is_tracked(holder)
    return first == id(_first_key(holder))


def newcomers() -> frozenset[int]:
    """Return tracked objects created since `gc.freeze`, by ``id()``; call before `gc.unfreeze`."""
    return frozenset(map(id, gc.get_objects()))


def fitting(
    growing: Collection[GrowingContainer],
    iterations: int,
    rate: float | None = None,
    size: float | None = None,
) -> tuple[GrowingContainer, ...]:
    """Return the containers and values whose growth fits, best first.

    `rate` and `size` (bytes) are per iteration.
    """
    # A single value is accepted only if it grows by about `size`: it may be replaced by one of
    # another length.
    low, high = LEAST * iterations, float(sys.maxsize)
    if rate is not None:
        # A single entry is not enough if two are expected.
        low = max(LEAST * min(rate, 1.0) * iterations, min(_MIN_ENTRIES, rate * iterations))
        high = MOST * rate * iterations + 1
    kept = [one for one in growing if not one.is_value and low <= one.gained <= high]
    values = (
        []
        if size is None
        else [one for one in growing if one.is_value and _is_near(one, iterations * size, 0.4)]
    )
    if rate is not None:
        near = [one for one in kept if _is_near(one, rate * iterations, _NEAR_SHARE)]
        kept = near or kept
    if size is None:
        return tuple(sorted(kept, key=lambda one: -one.gained))
    return (*values, *_fitting_size(kept, size * iterations, opaque_too=not values))


def _fitting_size(
    kept: Sequence[GrowingContainer], wanted: float, *, opaque_too: bool
) -> list[GrowingContainer]:
    """Return the containers whose entries may have so many bytes, best first."""
    bytes_of = {id(one): bytes_gained(one) for one in kept}
    possible = [
        container
        for container in kept
        if wanted / MAX_SIZE_RATIO <= bytes_of[id(container)] <= wanted * MAX_SIZE_RATIO
    ]
    # The size of what a library allocates cannot be read, so its objects are accepted, but only if
    # nothing else fits.
    if not possible and opaque_too:
        possible = [
            container
            for container in kept
            if any(
                inspection.is_opaque(value)
                for _key, value in inspection.last_entries(container.holder, 1)
            )
        ]
    return sorted(possible, key=lambda one: abs(bytes_of[id(one)] - wanted))


def are_shares(
    fit: Sequence[GrowingContainer],
    iterations: int,
    rate: float | None = None,
    size: float | None = None,
) -> bool:
    """Return whether each gained a share, and all the expected amount; arguments as `fitting`."""
    wanted = iterations * (rate if size is None and rate is not None else size or 0.0)
    gained = [bytes_gained(one) if size is not None else float(one.gained) for one in fit]
    # What is in two containers is retained once.
    newest = {
        id(value)
        for container in fit
        if not container.is_value
        for _key, value in inspection.last_entries(container.holder, 1)
    }
    if (
        not wanted
        or len(newest) < len(fit)
        or any(abs(one - wanted) <= _NEAR_SHARE * wanted for one in gained)
    ):
        return False
    return abs(sum(gained) - wanted) <= _NEAR_SHARE * wanted


def _is_near(container: GrowingContainer, wanted: float, share: float) -> bool:
    # One more or less is near: the entry of the last iteration may be kept elsewhere.
    return abs(container.gained - wanted) <= max(1.0, share * wanted)


def bytes_gained(container: GrowingContainer) -> float:
    """Estimate the gained entries' bytes from the two newest; for a value, return its growth."""
    if container.is_value:
        return container.gained
    entries = inspection.last_entries(container.holder, 2)
    (key, value), (other_key, other) = entries[0], entries[-1] if len(entries) > 1 else (None, None)
    size = inspection.own_size(value, other)
    return container.gained * (size if key is value else size + inspection.own_size(key, other_key))


@dataclass(slots=True, eq=False)
class _Found:
    """The containers (untracked dicts last), and the holders of large values, each with these."""

    containers: list[object] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    untracked: int = 0
    holders: list[tuple[object, list[object]]] = field(default_factory=list)
    kinds: Counter[int] = field(default_factory=Counter)

    def add(self, some: Sequence[object], lengths: Iterable[int]) -> None:
        self.containers += some
        self.ids.extend(map(id, some))
        self.sizes.extend(lengths)


def _walk(*, values: bool, known: Collection[int] | None = None) -> _Found:
    """List all containers; with `values`, also the holders of large ones: all, or those `known`."""
    # This comes first, so that it lists nothing made here: lists that hold each other would become
    # garbage.
    objects = gc.get_objects()
    found = _Found()
    derived = _derived_types()
    arrays = inspection.array_types()
    untracked: dict[int, dict[Any, Any]] = {}
    # Read everything about an object in one pass, because fetching an object from memory takes
    # longer than reading it.
    for some in in_chunks(objects):
        # Look types up by ``id()``, because hashing a class may run code of its metaclass.
        kinds = list(map(id, map(type, some)))
        found.kinds.update(kinds)
        plain: list[Any] = list(compress(some, map(_CONTAINER_TYPE_IDS.__contains__, kinds)))
        found.add(plain, map(len, plain))
        if not derived.isdisjoint(kinds):
            others = list(compress(some, map(derived.__contains__, kinds)))
            found.add(others, map(inspection.length, others))
        holders = list(
            compress(some, map(operator.not_, map(_SKIPPED_TYPE_IDS.__contains__, kinds)))
        )
        referents = gc.get_referents(*holders)
        dicts = compress(referents, map(operator.is_, map(type, referents), repeat(dict)))
        loose = list(filterfalse(gc.is_tracked, dicts))
        untracked.update(zip(map(id, loose), loose, strict=True))
        if values:
            if known is not None:
                holders = list(compress(holders, map(known.__contains__, map(id, holders))))
                referents = gc.get_referents(*holders)
            found.holders += _find_holders(holders, referents, arrays)
    # `objects` may include a frame, which would outlive its function and hold these lists.
    del objects, some, holders, referents, dicts
    rest = list(untracked.values())
    found.untracked = len(rest)
    found.add(rest, map(len, rest))
    if values:
        if known is not None:
            rest = [one for one in rest if id(one) in known]
        for some in in_chunks(rest):
            found.holders += _find_holders(some, gc.get_referents(*some), arrays)
    return found


def _derived_types() -> set[int]:
    return {
        id(cls)
        for kind in inspection.CONTAINERS
        for cls in with_subclasses(kind)
        if cls is not kind
    }


def in_chunks(objects: Sequence[object]) -> Iterator[list[object]]:
    """Yield lists of so many objects that they stay in the CPU cache while C code reads them."""
    return (list(objects[at : at + _CHUNK_SIZE]) for at in range(0, len(objects), _CHUNK_SIZE))


def _find_holders(
    some: Sequence[object], referents: list[Any], arrays: dict[int, str]
) -> Iterator[tuple[object, list[object]]]:
    """Yield each object that holds large values, with these; `referents`: of all the objects."""
    wanted = _VALUE_TYPE_IDS | arrays.keys()
    values = list(compress(referents, map(wanted.__contains__, map(id, map(type, referents)))))
    # `sys.getsizeof` may not include the data of arrays and in-memory files, so that all of them
    # are added.
    data = compress(values, map(arrays.__contains__, map(id, map(type, values))))
    large = {
        *map(id, compress(values, map(_MAX_SMALL_VALUE.__lt__, map(sys.getsizeof, values)))),
        *map(id, data),
    }
    for holder in some if large else ():
        values = [value for value in gc.get_referents(holder) if id(value) in large]
        # An array or in-memory file is a value itself, not the holder of its data.
        if values and id(type(holder)) not in arrays:
            yield holder, values
