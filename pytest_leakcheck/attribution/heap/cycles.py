"""Find garbage before the collector does, and name the cycle that keeps what is retained in it."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MappingProxyType
from typing import Any, Final
from weakref import getweakrefcount

from pytest_leakcheck.attribution.handles import MAX_OWN_DEPTH, handles_of, is_opaque_handle
from pytest_leakcheck.attribution.inspection import (
    MAX_PARTS,
    is_shared,
    mro_of,
    namespace_of,
    parts_of,
    size_of,
    walk,
)

# Objects of any kind are made of these types, so that the name of a cycle leaves them out.
_GENERIC_TYPES: Final = (
    dict,
    list,
    tuple,
    set,
    frozenset,
    FunctionType,
    BuiltinFunctionType,
    CodeType,
    CellType,
)
# An object holds memory that is retained if it has at least this share of the bytes of the largest
# one.
_MIN_SIZE_SHARE: Final = 0.5
# Maximum number of garbage objects to search, and of objects of one component from which a short
# cycle is searched for.
_MAX_CYCLE_OBJECTS: Final = 5_000
_MAX_STARTS: Final = 50


def find_garbage(
    objects: Sequence[Any], lent: Mapping[int, int] = MappingProxyType({})
) -> list[Any]:
    """Return which of these objects only garbage among them refers to, as the collector finds them.

    Unlike a collection, it runs no finalizer, which may break the cycle. The caller must hold no
    other references. Those that are `lent` do not count: how many of them an object has, by its
    ``id()``.
    """
    marker = [object()]
    # `getrefcount` also counts the references that its own call adds, and the one in the list.
    asking = sys.getrefcount(marker[0])
    outside = {id(objects[at]): sys.getrefcount(objects[at]) - asking for at in range(len(objects))}
    for number, count in lent.items():
        outside[number] -= count
    for referent in gc.get_referents(*objects):
        if id(referent) in outside:
            outside[id(referent)] -= 1
    alive = [one for one in objects if outside[id(one)] > 0]
    for level in walk(alive, lambda part: id(part) in outside, len(objects) + 1):
        for number in level:
            outside.pop(number, None)
    return [one for one in objects if id(one) in outside]


def handles_in(
    garbage: Sequence[Any], identities: Collection[Hashable]
) -> Iterator[frozenset[int]]:
    """Yield three sets of objects in garbage, by ``id()``.

    They are these handles, can give back one whose number they hold, and may hide one.
    """
    parts = _parts(garbage)
    yield frozenset(number for number, one in parts.items() if handles_of(one, identities))
    # Any object may hold a number of the same value, but only a finalizer gives back a handle.
    yield frozenset(
        id(one) for one in garbage if _is_finalized(one) and _has_number(one, parts, identities)
    )
    yield frozenset(number for number, one in parts.items() if is_opaque_handle(type(one)))


def _is_finalized(obj: object) -> bool:
    """Return whether code runs when an object is freed: its own, or that of a weak reference."""
    has_own = any("__del__" in namespace_of(base) for base in mro_of(type(obj)))
    return has_own or bool(getweakrefcount(obj))


def _has_number(obj: object, parts: Mapping[int, object], identities: Collection[Hashable]) -> bool:
    levels = islice(walk((obj,), lambda part: id(part) in parts, MAX_PARTS), MAX_OWN_DEPTH)
    return any(handles_of(part, identities, by_value=True) for part in parts_of(levels).values())


def largest_in(garbage: Sequence[Any], least: float) -> frozenset[int]:
    """Return the ``id()`` of the objects that hold the most memory.

    Empty if all of them together hold fewer than `least` bytes.
    """
    sizes = {number: size_of(one) for number, one in _parts(garbage).items()}
    most = max(sizes.values(), default=0)
    enough = sum(sizes.values()) >= least
    return frozenset(
        number for number, size in sizes.items() if enough and size >= _MIN_SIZE_SHARE * most
    )


def _parts(garbage: Sequence[Any]) -> dict[int, Any]:
    """Return the garbage and what it refers to that is not tracked, such as bytes, by ``id()``."""
    others = (
        one for one in gc.get_referents(*garbage) if not gc.is_tracked(one) and not is_shared(one)
    )
    return {id(one): one for one in (*garbage, *others)}


def name_cycles(
    garbage: Sequence[Any], count: float, retained: Collection[int] = ()
) -> tuple[str, ...]:
    """Name the types of a cycle, the alphabetically first one first.

    A frame is named by its function and the variable. With `retained`, the ``id()`` of objects in
    the garbage, it is the nearest cycle that leads to one of them; else the one whose number is
    closest to the expected one. Empty if there is none.
    """
    known = {id(one): one for one in garbage[:_MAX_CYCLE_OBJECTS]}
    edges = {
        number: [
            id(referent)
            for referent in gc.get_referents(obj)
            if id(referent) in known or id(referent) in retained
        ]
        for number, obj in known.items()
    }
    back: dict[int, list[int]] = {}
    for number, targets in edges.items():
        for target in targets:
            back.setdefault(target, []).append(number)
    if retained:
        start = [number for number in retained if number in known or number in back]
        near = (
            _name(_shortest_cycle(number, edges), known)
            for number in (*start, *_search(start, back))
        )
        return next(filter(None, near), ())
    shapes: Counter[tuple[str, ...]] = Counter()
    done: set[int] = set()
    for number in known:
        if number not in done and number in (ahead := _search([number], edges)):
            # One cycle represents its whole component: all objects that this one leads to and that
            # lead back to it.
            component = ahead.keys() & _search([number], back).keys()
            done |= component
            some = islice((one for one in ahead if one in component), _MAX_STARTS)
            shapes[_name(min((_shortest_cycle(one, edges) for one in some), key=len), known)] += 1
    del shapes[()]
    return min(
        shapes, key=lambda shape: (abs(shapes[shape] - count), len(shape), shape), default=()
    )


def _shortest_cycle(start: int, edges: Mapping[int, Sequence[int]]) -> list[int]:
    """Return a shortest cycle through an object, beginning with it; empty if it is in none."""
    before = _search([start], edges)
    cycle = [before[start]] if start in before else []
    while cycle and cycle[-1] != start:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def _search(start: Sequence[int], edges: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return the object before each one reached, nearest first; a `start` only if in a cycle."""
    before: dict[int, int] = {}
    reached = list(start)
    for number in reached:
        for target in edges.get(number, ()):
            if target not in before:
                before[target] = number
                reached.append(target)
    return before


def _name(cycle: Sequence[int], known: Mapping[int, Any]) -> tuple[str, ...]:
    """Name the objects of a cycle, without generic ones unless there are only functions."""
    objects = [known[number] for number in cycle]
    pairs = list(zip(objects, (*objects[1:], *objects[:1]), strict=True))
    names = [
        _name_one(one, following) for one, following in pairs if type(one) not in _GENERIC_TYPES
    ]
    names = names or [
        f"function {one.__qualname__}" for one, _following in pairs if type(one) is FunctionType
    ]
    first = names.index(min(names)) if names else 0
    return (*names[first:], *names[:first])


def _name_one(obj: Any, following: Any) -> str:
    if type(obj) is not FrameType:
        return type(obj).__name__
    values = gc.get_referents(following) if type(following) is CellType else [following]
    name = next(
        (name for name, value in obj.f_locals.items() if any(value is target for target in values)),
        "",
    )
    return f"frame of {obj.f_code.co_qualname}()" + (f" local {name!r}" if name else "")
