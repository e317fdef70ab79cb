"""Measure how much of a resource a few objects retain.

If they are entries of a cache, the plugin attributes this part of the growth to that cache.
"""

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
from pytest_leakcheck.probes.garbage_collector import has_frozen

# References of the entries are not followed further once this many parts have been found.
_MAX_PARTS: Final = 50_000
# Types whose objects the whole program shares. If objects are frozen, all frozen ones are left out anyway. If nothing
# is frozen, objects of these types are left out instead.
SHARED_TYPES: Final = (type, FunctionType, CodeType, FrameType)
# pymalloc serves requests of up to 512 bytes from its own arenas, which malloc does not count (Objects/obmalloc.c).
_MAX_PYMALLOC_BYTES: Final = 512
# Bytes of a lock, which files and threads contain. Although a lock is small, malloc allocates it.
_LOCK_BYTES: Final = 64
# Blocks of a container: the object, its entries, and often a table of them.
_BLOCKS_PER_CONTAINER: Final = 3


def retained(resource: str, entries: Sequence[object], identities: Collection[Hashable]) -> float:
    """Return how much of a resource would be released if these entries, which a cache has added, were evicted.

    The amount is in the unit of the resource. If its units can be anything, as with a gauge, each entry that is more
    than plain data counts as one. For memory, the amount is infinite if an entry contains an object of an extension
    type (other than arrays), because such an object may hold any amount.

    A part of an entry that the collector tracks counts only if it was created since `gc.freeze`. An object that several
    entries share counts once. A number or a name in plain data, such as a dict of log values, does not count as a
    handle. `identities` are those of the new handles, as in `handle_kinds.Things`.
    """
    counted = find_resource(resource)
    if counted.made_of == "handles":
        return len(_find_handles(entries, identities)) if identities else 0
    if counted.made_of == "objects":
        return len(_parts(entries).keys() & _new_object_ids())
    if counted.made_of == "blocks":
        return sum(_BLOCKS_PER_CONTAINER if container_kind(part) else 1 for part in _parts(entries).values())
    if counted.made_of == "anything":
        return sum(not _is_plain_data(entry) for entry in entries)
    return _sum_bytes(counted, _parts(entries).values())


def _parts(entries: Sequence[object]) -> dict[int, object]:
    """Return the entries and what they refer to, also indirectly, by ``id()``; tracked parts only if they are new."""
    new = _new_object_ids()
    frozen = has_frozen()
    ends = (ModuleType,) if frozen else (ModuleType, *SHARED_TYPES)
    parts: dict[int, object] = {id(entry): entry for entry in entries}
    level = list(entries)
    while level and len(parts) < _MAX_PARTS:
        inner = {
            id(part): part
            for part in (*gc.get_referents(*level), *_list_hidden_parts(level))
            if id(part) not in parts and type(part) not in ends and (id(part) in new or not gc.is_tracked(part))
        }
        parts |= inner
        level = list(inner.values())
    return parts


def _new_object_ids() -> frozenset[int]:
    """Return the ``id()`` of each tracked object created since `gc.freeze`."""
    return frozenset(map(id, gc.get_objects()))


def _list_hidden_parts(objects: Iterable[object]) -> Iterator[object]:
    """Yield objects that are released together with these objects, but that `gc.get_referents` does not return."""
    for one in objects:
        # Weak references to the object, such as those in a `weakref.WeakSet`.
        yield from weakref.getweakrefs(one)
        if type(one) is weakref.finalize:
            yield weakref.finalize._registry.get(one)  # type: ignore[attr-defined]
        elif type(one) is CodeType:
            yield from (one.co_consts, one.co_names, one.co_linetable, one.co_code)


def _find_handles(entries: Sequence[object], identities: Collection[Hashable]) -> set[Hashable]:
    """Return the handles that the entries stand for; a part that cannot be inspected stands for one handle."""
    found: set[Hashable] = set()
    # An entry may itself be the number of a descriptor, and an attribute the number or the name of a handle.
    by_value: list[Any] = [entry for entry in entries if type(entry) is int]
    for part in _parts(entries).values():
        if is_opaque_handle(type(part)):
            found.add(("opaque", id(part)))
            continue
        found |= handles_of(part, identities)
        if module_of_type(type(part)) != "builtins":
            by_value += _attributes(part)
    named = {handle for one in by_value for handle in handles_of(one, identities, by_value=True)}
    # Other numbers, such as those of requests, may equal the numbers of descriptors. But they do not grow at the same
    # rate as descriptors, so they do not include the highest new descriptor.
    newest = max((one for one in identities if type(one) is int), default=None)
    return found | (named if newest is None or newest in named else set())


def _attributes(one: object) -> list[Any]:
    """Return the attribute values of an instance, from its slots and its dict."""
    direct = gc.get_referents(one)
    return [*direct, *(value for part in direct if type(part) is dict for value in part.values())]


def _is_plain_data(entry: object) -> bool:
    """Return whether an entry has only builtin values and containers; False for a lone int, which may be a handle."""
    if type(entry) is int:
        return False
    return all(module_of_type(type(part)) == "builtins" for part in _parts([entry]).values())


def _sum_bytes(resource: Resource, parts: Collection[object]) -> float:
    """Sum the bytes that the resource counts; infinite with a part of an extension type, except arrays and NumPy's."""
    arrays = array_types()
    # Without pymalloc, `sys.getallocatedblocks` returns 0, and malloc serves small requests too.
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
            total += _LOCK_BYTES if module_of_type(kind) != "builtins" else 0
    return total


def _own_bytes(part: Any, kind: type) -> int:
    # For a user's class, `sys.getsizeof` would run its `__sizeof__`.
    return sys.getsizeof(part) if is_c(kind) else basic_size(kind)
