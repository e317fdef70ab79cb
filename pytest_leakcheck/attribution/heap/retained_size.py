"""Measure how much of a resource a few objects retain: so much of a growth can be put down to the cache that holds them."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from math import inf
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution.handle_kinds import handles_of, is_c, is_of_extension, is_opaque_handle
from pytest_leakcheck.attribution.object_inspection import (
    amount,
    array_types,
    basic_size,
    container_kind,
    module_of_type,
)
from pytest_leakcheck.model.resources import Resource, find_resource
from pytest_leakcheck.probes.garbage_collector import FROZEN_BY_PYTHON

# What entries are made of is followed no further than to so many objects.
_MAX_PARTS: Final = 50_000
# Shared by the whole program; what is frozen is left out anyway, and these are where nothing is.
_SHARED: Final = (type, FunctionType, CodeType, FrameType)
# pymalloc serves requests of up to 512 bytes from arenas of its own, which malloc does not count (Objects/obmalloc.c).
_MAX_PYMALLOC_BYTES: Final = 512
# A lock, which files and threads have, is taken from malloc however small it is.
_OF_LOCK: Final = 64
# Itself, its entries, and often a table of them.
_BLOCKS_OF_CONTAINER: Final = 3


def retained(resource: str, entries: Sequence[object], identities: Collection[Hashable]) -> float:
    """How much of a resource would be given back if these entries were evicted.

    Only what is new since the collector froze counts, and what several entries share counts once. A number or a name in
    plain data, such as a dict of a log, counts for no handle.

    Args:
        resource: The name of the resource; of what may be anything, as a gauge, each entry that is more than plain data may be a unit.
        entries: What a cache took in.
        identities: For handles (descriptors, threads, files): those that are new, as `things.Things` tells them apart.

    Returns:
        In the unit of the resource. Infinite for memory where an entry is of a type written in C, in an extension module,
        which may hold any amount.
    """
    counted = find_resource(resource)
    if counted.made_of == "handles":
        return len(_handles(entries, identities)) if identities else 0
    if counted.made_of == "objects":
        return len(_parts(entries).keys() & _new_objects())
    if counted.made_of == "blocks":
        return sum(_BLOCKS_OF_CONTAINER if container_kind(part) else 1 for part in _parts(entries).values())
    if counted.made_of == "anything":
        return sum(not _is_plain_data(entry) for entry in entries)
    return _bytes(counted, _parts(entries).values())


def _parts(entries: Sequence[object]) -> dict[int, object]:
    """The entries and what they refer to, directly or not, by identity; of what the collector tracks only what is new."""
    new = _new_objects()
    frozen = gc.get_freeze_count() > FROZEN_BY_PYTHON
    ends = (ModuleType,) if frozen else (ModuleType, *_SHARED)
    parts: dict[int, object] = {id(entry): entry for entry in entries}
    level = list(entries)
    while level and len(parts) < _MAX_PARTS:
        inner = {
            id(part): part
            for part in (*gc.get_referents(*level), *_kept_beside(level))
            if id(part) not in parts and type(part) not in ends and (id(part) in new or not gc.is_tracked(part))
        }
        parts |= inner
        level = list(inner.values())
    return parts


def _new_objects() -> frozenset[int]:
    return frozenset(map(id, gc.get_objects()))


def _kept_beside(objects: Iterable[object]) -> Iterator[object]:
    """What goes when these go, and the collector does not show as theirs."""
    for one in objects:
        # Of a `weakref.WeakSet`, say.
        yield from weakref.getweakrefs(one)
        if type(one) is weakref.finalize:
            yield weakref.finalize._registry.get(one)  # type: ignore[attr-defined]
        elif type(one) is CodeType:
            yield from (one.co_consts, one.co_names, one.co_linetable, one.co_code)


def _handles(entries: Sequence[object], identities: Collection[Hashable]) -> set[Hashable]:
    """Which of these things the entries stand for; a part that cannot be looked into stands for one."""
    found: set[Hashable] = set()
    # An entry may be the number of a descriptor alone, and an attribute its number or its name.
    by_value: list[Any] = [entry for entry in entries if type(entry) is int]
    for part in _parts(entries).values():
        if is_opaque_handle(type(part)):
            found.add(("opaque", id(part)))
            continue
        found |= handles_of(part, identities)
        if module_of_type(type(part)) != "builtins":
            by_value += _attributes(part)
    named = {handle for one in by_value for handle in handles_of(one, identities, by_value=True)}
    # Numbers of requests overlap with those of descriptors. They do not keep up with them, so the newest is not among them.
    newest = max((one for one in identities if type(one) is int), default=None)
    return found | (named if newest is None or newest in named else set())


def _attributes(one: object) -> list[Any]:
    """What an instance has as attributes: in slots, or in its dict."""
    direct = gc.get_referents(one)
    return [*direct, *(value for part in direct if type(part) is dict for value in part.values())]


def _is_plain_data(entry: object) -> bool:
    """Whether it is nothing but values and builtin containers of them; a number by itself may be a handle."""
    if type(entry) is int:
        return False
    return all(module_of_type(type(part)) == "builtins" for part in _parts([entry]).values())


def _bytes(resource: Resource, parts: Collection[object]) -> float:
    arrays = array_types()
    # Without pymalloc no block is counted.
    least = 0 if resource.counts_small or not sys.getallocatedblocks() else _MAX_PYMALLOC_BYTES
    total = 0
    for part in parts:
        kind = type(part)
        if id(kind) in arrays:
            total += amount(part, arrays)
        elif is_of_extension(kind) and not module_of_type(kind).startswith("numpy"):
            return inf
        elif not resource.buffers_only:
            size = _own_bytes(part, kind)
            total += size if size > least else 0
            total += _OF_LOCK if module_of_type(kind) != "builtins" else 0
    return total


def _own_bytes(part: Any, kind: type) -> int:
    # What a class of the user's own would answer is its code.
    return sys.getsizeof(part) if is_c(kind) else basic_size(kind)
