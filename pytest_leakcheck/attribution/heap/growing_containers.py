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
from dataclasses import dataclass, field
from itertools import compress, filterfalse, repeat
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from pytest_leakcheck.attribution.object_inspection import (
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
_FEW: Final = 16
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
_CONTAINERS: Final = frozenset(map(id, CONTAINERS))
# Functions are a quarter of all objects, and hold two fifths of all references; what of theirs may grow is listed itself:
# a closure's cells, a default that is a container, a dict of attributes with a container in it. The rest refers to names
# and classes. A module's dict is listed too, and what else it refers to is private to C.
_PASSED_OVER: Final = frozenset(
    (
        id(FunctionType),
        id(GetSetDescriptorType),
        id(MemberDescriptorType),
        id(MethodDescriptorType),
        id(ModuleType),
        id(WrapperDescriptorType),
    )
)
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

    __slots__ = ("_amounts", "_first", "_holders", "_ids", "_sizes", "_values")

    def __init__(self, *, values: bool = True) -> None:
        """Args: values: Also look at single values; takes three times as long, and is of use where bytes are known."""
        self._values = values
        found = _walk(values=values)
        self._ids, self._sizes = found.ids, found.sizes
        # An identity may be used again: of what the collector does not track, a dict that begins with another key is
        # another dict.
        self._first = array("Q", map(id, map(_first_key, found.containers[len(found.ids) - found.untracked :])))
        arrays = array_types()
        self._holders = array("Q", (id(holder) for holder, values in found.holders for _ in values))
        self._amounts = array("q", (amount(value, arrays) for _holder, values in found.holders for value in values))

    def grown(self, new: Collection[int] = frozenset(), ignore: Collection[int] = frozenset()) -> tuple[Growing, ...]:
        """What is larger now, by any amount.

        Args:
            new: `newcomers`, as they were before the objects were unfrozen: what is new cannot have been counted.
            ignore: Identities of what does not count.
        """
        found = _walk(values=self._values, known=frozenset(self._holders))
        then = dict(zip(self._ids, self._sizes, strict=True))
        # What was not there stands where it stood.
        before = array("q", map(then.get, found.ids, found.sizes))
        larger = [
            Growing(one, size - smaller)
            for one, size, smaller in compress(
                zip(found.containers, found.sizes, before, strict=True), map(operator.gt, found.sizes, before)
            )
        ]
        places = {id(one.holder) for one in larger}
        first = {
            place: key
            for place, key in zip(reversed(self._ids), reversed(self._first), strict=False)
            if place in places
        }
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


def _first_key(one: Any) -> object:
    return next(iter(one), None)


def _is_the_same(holder: object, first: int | None, new: Collection[int]) -> bool:
    """Whether a container is the one that was there before under its identity.

    Args:
        holder: The container as it is now.
        first: Of a dict that the collector did not track, the identity of the key that it began with.
        new: What the collector lists as new. It does so with a dict from when it begins to track it, too.
    """
    if first is None or type(holder) is not dict:
        return id(holder) not in new and gc.is_tracked(holder)
    return first == id(_first_key(holder))


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


@dataclass(slots=True, eq=False)
class _Found:
    """What there is at a moment.

    Attributes:
        containers: All of them; dicts that the collector does not track come last.
        ids: Their identities.
        sizes: Their lengths, as the builtin types have them, whatever a derived class answers.
        untracked: How many come last.
        holders: What holds large values, with these.
    """

    containers: list[object] = field(default_factory=list)
    ids: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))
    untracked: int = 0
    holders: list[tuple[object, list[object]]] = field(default_factory=list)

    def add(self, some: Sequence[object], lengths: Iterable[int]) -> None:
        self.containers += some
        self.ids.extend(map(id, some))
        self.sizes.extend(lengths)


def _walk(*, values: bool, known: Collection[int] | None = None) -> _Found:
    """
    Args:
        values: Also look for large values.
        known: Identities of what held some before; None to look everywhere, which takes twice as long as all the rest.
    """
    # First of all, so that nothing made here is among them: lists that hold each other would be garbage.
    objects = gc.get_objects()
    found = _Found()
    derived = set(map(id, _deriving(CONTAINERS)))
    arrays = array_types()
    untracked: dict[int, dict[Any, Any]] = {}
    crowded: list[tuple[Sequence[object], list[object]]] = []
    # All that is asked of an object is asked at once: to fetch it from memory takes longer than to ask.
    for some in _chunks(objects):
        # By identity: to hash a class runs code of its metaclass.
        kinds = list(map(id, map(type, some)))
        plain: list[Any] = list(compress(some, map(_CONTAINERS.__contains__, kinds)))
        found.add(plain, map(len, plain))
        if not derived.isdisjoint(kinds):
            others = list(compress(some, map(derived.__contains__, kinds)))
            found.add(others, map(length, others))
        holders = list(compress(some, map(operator.not_, map(_PASSED_OVER.__contains__, kinds))))
        referents = gc.get_referents(*holders)
        dicts = compress(referents, map(operator.is_, map(type, referents), repeat(dict)))
        loose = list(filterfalse(gc.is_tracked, dicts))
        untracked.update(zip(map(id, loose), loose, strict=True))
        if values:
            if known is not None:
                holders = list(compress(holders, map(known.__contains__, map(id, holders))))
                referents = gc.get_referents(*holders)
            if large := _large(referents, arrays):
                crowded.append((holders, large))
    # In Python 3.10 a frame is among them, which would outlive its function and hold these.
    del objects, some, holders, referents, dicts
    rest = list(untracked.values())
    found.untracked = len(rest)
    found.add(rest, map(len, rest))
    if values:
        if known is not None:
            rest = [one for one in rest if id(one) in known]
        crowded += [(some, large) for some in _chunks(rest) if (large := _large(gc.get_referents(*some), arrays))]
        found.holders = [holder for some, large in crowded for holder in _holders(some, large, arrays)]
    crowded.clear()
    return found


def _deriving(kinds: Iterable[type]) -> Iterator[type]:
    for kind in kinds:
        below: list[type] = type.__subclasses__(kind)
        yield from below
        yield from _deriving(below)


def _chunks(objects: Sequence[object], size: int = _CHUNK) -> Iterator[list[object]]:
    return (list(objects[at : at + size]) for at in range(0, len(objects), size))


def _large(referents: list[Any], arrays: dict[int, str]) -> list[object]:
    """The large values among these."""
    kinds = list(map(id, map(type, referents)))
    # Most of all are strings, and hardly one is long.
    texts = list(compress(referents, map(_TEXT.__contains__, kinds)))
    large: list[object] = []
    if max(map(len, texts), default=0) > _LARGE:
        large += [one for one in texts if len(one) > _LARGE]
    wanted = _VALUES | arrays.keys()
    values = list(compress(referents, map(wanted.__contains__, kinds)))
    large += compress(values, map(_LARGE.__lt__, map(sys.getsizeof, values)))
    # These do not say how large they are.
    large += [one for one in values if id(type(one)) in arrays and sys.getsizeof(one) <= _LARGE]
    return large


def _holders(
    some: Sequence[object], large: list[object], arrays: dict[int, str]
) -> Iterator[tuple[object, list[object]]]:
    """Which of these hold the large values that were found in them."""
    wanted = frozenset(map(id, large))
    # What a file in memory holds is the file's own.
    others = list(compress(some, map(operator.not_, map(arrays.__contains__, map(id, map(type, some))))))
    for few in _chunks(others, _FEW):
        if not wanted.isdisjoint(map(id, gc.get_referents(*few))):
            for one in few:
                values = [value for value in gc.get_referents(one) if id(value) in wanted]
                if values:
                    yield one, values
