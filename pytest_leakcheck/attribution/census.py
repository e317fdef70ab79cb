"""Which containers grow, and which single values: the owners of what the collector does not see.

Bytes, strings, numbers and arrays are not tracked by the collector, and a dict that holds nothing else is not either. What
can be seen is that something has more entries than it had. Counted are all lists, dicts, sets and deques with what derives
from them, also untracked dicts, reached from what holds them; and, by holder, how much its large values amount to, for a
string or an array that is replaced by a longer one.
"""

from __future__ import annotations

import gc
import operator
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, filterfalse, repeat
from typing import Any, Final

from pytest_leakcheck.attribution.objects import (
    CONTAINERS,
    PAYLOAD,
    amount,
    array_types,
    is_opaque,
    last_entries,
    length,
    own_size,
)

# Referents come for many objects at once, in C; so many that the list of them stays in the cache.
_CHUNK: Final = 1024
# Objects among which a large value is then looked for one by one.
_FEW: Final = 64
# Smaller values are not followed: most strings are names, and one that has grown for a while is longer.
_LARGE: Final = 160
# How many times the rate a container may gain, or a part of it: an entry may hold several things, or half of one.
_LEAST: Final = 0.5
_MOST: Final = 2.0
# So near to what is asked for that others need not be looked at.
_NEAR: Final = 0.25
_SPARSE: Final = 2
# Sizes that are further apart than this are of different things; an allocator rounds, and counts its own.
_APART: Final = 4.0
_DICT: Final = frozenset((id(dict),))
_TEXT: Final = frozenset((id(str),))
_VALUES: Final = frozenset(id(kind) for kind in PAYLOAD if kind is not str)


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """Something that has grown between two moments.

    Attributes:
        holder: The container itself; or what holds the value that is replaced by longer ones.
        gained: Entries; or bytes or characters of the value.
        value: That value; None for a container.
    """

    holder: object
    gained: int
    value: object = None

    @property
    def is_value(self) -> bool:
        return self.value is not None


class Census:
    """How large each container was at one moment. Holds numbers alone, so it keeps nothing alive.

    Taken while nothing is frozen, since what is frozen is not listed.
    """

    __slots__ = ("_amounts", "_first", "_holders", "_ids", "_sizes")

    def __init__(self) -> None:
        found = _walk()
        self._ids = array("Q", map(id, found.containers()))
        self._sizes = array("q", found.sizes())
        # An identity may be used again: of what the collector does not track, a dict that begins with another key is
        # another dict.
        self._first = array("Q", map(id, map(next, map(iter, found.untracked), repeat(None))))
        arrays = array_types()
        self._holders = array("Q", (id(holder) for holder, values in found.holders for _ in values))
        self._amounts = array("q", (amount(value, arrays) for _holder, values in found.holders for value in values))

    def grown(self, new: Collection[int] = frozenset(), ignore: Collection[int] = frozenset()) -> tuple[Growing, ...]:
        """What is larger now, by any amount.

        Args:
            new: `newcomers`, as they were before the objects were unfrozen: what is new cannot have been counted.
            ignore: Identities of what does not count.
        """
        found = _walk()
        then = dict(zip(self._ids, self._sizes, strict=True))
        sizes = array("q", found.sizes())
        # What was not there stands where it stood.
        before = array("q", map(then.get, map(id, found.containers()), sizes))
        larger = [
            Growing(one, size - smaller)
            for one, size, smaller in compress(
                zip(found.containers(), sizes, before, strict=True), map(operator.gt, sizes, before)
            )
        ]
        places = {id(one.holder) for one in larger}
        first = {place: key for place, key in zip(self._ids, self._first, strict=False) if place in places}
        same = (
            one
            for one in larger
            if id(one.holder) not in ignore and _is_the_same(one.holder, first.get(id(one.holder)), new)
        )
        return (*same, *self._longer(found.holders, {*places, *new, *ignore}))

    def _longer(self, holders: Sequence[tuple[object, list[object]]], other: Collection[int]) -> Iterator[Growing]:
        then: dict[int, list[int]] = {}
        for place, size in zip(self._holders, self._amounts, strict=True):
            then.setdefault(place, []).append(size)
        arrays = array_types()
        for holder, values in holders:
            before = then.get(id(holder), ())
            # Values have no names here, but an order. Where one has come to be large, or gone, it does not hold.
            if len(before) == len(values) and id(holder) not in other:
                for size, value in zip(before, values, strict=True):
                    if (gained := amount(value, arrays) - size) > 0:
                        yield Growing(holder, gained, value)


def _is_the_same(holder: object, first: int | None, new: Collection[int]) -> bool:
    """Whether a container is the one that was there before under its identity.

    Args:
        holder: The container as it is now.
        first: Of a dict that the collector did not track, the identity of the key that it began with.
        new: What the collector lists as new. It does so with a dict from when it begins to track it, too.
    """
    if first is None or type(holder) is not dict:
        return id(holder) not in new and gc.is_tracked(holder)
    return first == id(next(iter(holder), None))


def newcomers() -> frozenset[int]:
    """The identities of what has come since all was frozen; to be taken before it is unfrozen."""
    return frozenset(map(id, gc.get_objects()))


def fitting(
    growing: Collection[Growing],
    iterations: int,
    rate: float | None = None,
    size: float | None = None,
) -> tuple[Growing, ...]:
    """Those that can be what retains so much, best first.

    Args:
        growing: What has grown in these iterations.
        iterations: How many there were.
        rate: Things retained per iteration, where they are countable.
        size: Bytes retained per iteration, where that is known. A single value is believed by its bytes alone: one
            that is merely replaced differs in length too.
    """
    low, high = _bounds(iterations, rate)
    kept = [one for one in growing if not one.is_value and low <= one.gained <= high]
    values = [] if size is None else [one for one in growing if one.is_value and _is_near(one, iterations * size, 0.4)]
    if rate is not None:
        near = [one for one in kept if _is_near(one, rate * iterations, _NEAR)]
        kept = near or kept
    if size is None:
        return tuple(sorted(kept, key=lambda one: -one.gained))
    wanted = size * iterations
    bytes_of = {id(one): bytes_gained(one) for one in kept}
    possible = [one for one in kept if wanted / _APART <= bytes_of[id(one)] <= wanted * _APART]
    good = [one for one in possible if wanted / 2 <= bytes_of[id(one)] <= wanted * 2]
    # Of what a library has in memory of its own no size can be read: it is believed where nothing else fits.
    chosen = good or possible or ([] if values else [one for one in kept if _is_opaque(one)])
    return (*values, *sorted(chosen, key=lambda one: abs(bytes_of[id(one)] - wanted)))


def _is_opaque(one: Growing) -> bool:
    return any(is_opaque(value) for _key, value in last_entries(one.holder, 1))


def _bounds(iterations: int, rate: float | None) -> tuple[float, float]:
    """From how many entries on, and up to how many, a container may have gained."""
    if rate is None:
        return _LEAST * iterations, sys.maxsize
    # One entry in all is no growth, where two are expected.
    least = max(_LEAST * min(rate, 1.0) * iterations, min(_SPARSE, rate * iterations))
    return least, _MOST * rate * iterations + 1


def _is_near(one: Growing, wanted: float, share: float) -> bool:
    # By one more or less: the last iteration's may be kept elsewhere.
    return abs(one.gained - wanted) <= max(1.0, share * wanted)


def bytes_gained(one: Growing) -> float:
    """What the entries that came last amount to, judged by two of them."""
    if one.is_value:
        return one.gained
    arrays = array_types()
    entries = last_entries(one.holder, 2)
    (key, value), (other_key, other) = entries[0], entries[-1] if len(entries) > 1 else (None, None)
    each = own_size(value, other, arrays)
    return one.gained * (each if key is value else each + own_size(key, other_key, arrays))


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What there is at a moment: the containers, and what holds large values.

    Attributes:
        untracked: Dicts that the collector does not track.
        dicts: Other plain ones.
        plain: Lists, sets and deques.
        derived: Instances of classes that derive from a container.
        holders: What holds large values, with these.
    """

    untracked: list[dict[Any, Any]]
    dicts: list[dict[Any, Any]]
    plain: list[Any]
    derived: list[object]
    holders: list[tuple[object, list[object]]]

    def containers(self) -> Iterator[object]:
        return chain(self.untracked, self.dicts, self.plain, self.derived)

    def sizes(self) -> Iterator[int]:
        """In the same order. The lengths as the builtin types have them, whatever a derived class answers."""
        return chain(*(map(len, some) for some in (self.untracked, self.dicts, self.plain)), map(length, self.derived))


def _walk() -> _Found:
    objects = gc.get_objects()
    kinds = list(map(id, map(type, objects)))
    plain = {id(kind) for kind in CONTAINERS if kind is not dict}
    derived = set(map(id, _deriving(CONTAINERS)))
    dicts: dict[int, dict[Any, Any]] = {}
    tracked: list[Any] = list(compress(objects, map(_DICT.__contains__, kinds)))
    arrays = array_types()
    crowded = []
    for some in _chunks(objects):
        loose, large = _referents(some, arrays)
        dicts.update(loose)
        if large:
            crowded.append(some)
    untracked = list(dicts.values())
    crowded += [some for some in _chunks(untracked) if _referents(some, arrays)[1]]
    return _Found(
        untracked,
        tracked,
        list(compress(objects, map(plain.__contains__, kinds))),
        list(compress(objects, map(derived.__contains__, kinds))),
        [found for some in crowded for found in _holders(some, arrays)],
    )


def _deriving(kinds: Iterable[type]) -> Iterator[type]:
    for kind in kinds:
        below: list[type] = type.__subclasses__(kind)
        yield from below
        yield from _deriving(below)


def _chunks(objects: Sequence[object], size: int = _CHUNK) -> Iterator[list[object]]:
    return (list(objects[at : at + size]) for at in range(0, len(objects), size))


def _referents(some: list[object], arrays: dict[int, str]) -> tuple[dict[int, dict[Any, Any]], list[object]]:
    """Of what they refer to: the dicts that the collector does not track, and the large values."""
    referents = gc.get_referents(*some)
    # By identity: to hash a class runs code of its metaclass.
    kinds = list(map(id, map(type, referents)))
    loose = filterfalse(gc.is_tracked, compress(referents, map(_DICT.__contains__, kinds)))
    # Most of all are strings, and hardly one is long.
    texts = list(compress(referents, map(_TEXT.__contains__, kinds)))
    large = [one for one in texts if len(one) > _LARGE] if max(map(len, texts), default=0) > _LARGE else []
    wanted = _VALUES | arrays.keys()
    values = list(compress(referents, map(wanted.__contains__, kinds)))
    large += compress(values, map(_LARGE.__lt__, map(sys.getsizeof, values)))
    # These do not say how large they are.
    large += [one for one in values if id(type(one)) in arrays and sys.getsizeof(one) <= _LARGE]
    return {id(one): one for one in loose}, large


def _holders(some: list[object], arrays: dict[int, str]) -> Iterator[tuple[object, list[object]]]:
    for few in _chunks(some, _FEW):
        large = {id(value): None for value in _referents(few, arrays)[1]}
        if large:
            for one in few:
                referents = gc.get_referents(one)
                # What a file in memory holds is the file's own.
                if id(type(one)) not in arrays and not large.keys().isdisjoint(map(id, referents)):
                    yield one, [value for value in referents if id(value) in large]
