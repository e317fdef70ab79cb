"""Measure how much of a resource a cache's entries retain: the growth attributed to the cache."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from types import CodeType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.handles import handles_of, is_opaque_handle
from pytest_leakcheck.attribution.heap.growing_containers import newcomers
from pytest_leakcheck.model.resources import RESIDENT, Resource, find_resource
from pytest_leakcheck.probes.garbage_collector import has_frozen
from pytest_leakcheck.probes.runtime_counters import MAX_POOL_BYTES

# The parts of all entries that count.
_MAX_PARTS: Final = 200_000
# Bytes of a lock, which files and threads contain. Although a lock is small, malloc allocates it.
_LOCK_BYTES: Final = 64
# Blocks of a container: the object, its entries, and often a table of them.
_BLOCKS_PER_CONTAINER: Final = 3


class CreatedObjects:
    """What was created since `gc.freeze`; reading it takes milliseconds, so it is read once."""

    @cached_property
    def new(self) -> frozenset[int]:
        return newcomers()

    @cached_property
    def any_frozen(self) -> bool:
        return has_frozen()


def retained(
    resource: str,
    entries: Sequence[object],
    identities: Collection[Hashable],
    created: CreatedObjects | None = None,
) -> float:
    """Return how much of a resource, in its unit, is released if these cache entries are evicted.

    Tracked parts count only if they were created since `gc.freeze`, and shared ones once. If the
    units can be anything, each entry that is more than plain data is one. Memory is infinite if an
    object of an extension type may hold any. `identities` are those of the new handles; a number or
    a name in plain data is none. `created` is shared by calls that follow one another at once.
    """
    created = created or CreatedObjects()
    counted = find_resource(resource)
    if counted.made_of == "handles":
        return len(_find_handles(entries, identities, created)) if identities else 0
    if counted.made_of == "objects":
        return len(_parts(entries, created).keys() & created.new)
    if counted.made_of == "blocks":
        return sum(
            _BLOCKS_PER_CONTAINER if inspection.container_kind(part) else 1
            for part in _parts(entries, created).values()
        )
    if counted.made_of == "anything":
        return sum(not _is_plain_data(entry, created) for entry in entries)
    return _sum_bytes(counted, _parts(entries, created).values())


def _parts(entries: Sequence[object], created: CreatedObjects) -> dict[int, object]:
    """Return the entries and all that they lead to, by ``id()``; tracked parts only if new."""
    new, frozen = created.new, created.any_frozen

    def is_part(part: object) -> bool:
        if id(part) not in new and gc.is_tracked(part):
            return False
        # Objects that the whole program shares are frozen, if any are.
        return type(part) is not ModuleType if frozen else not inspection.is_shared(part)

    return inspection.parts_of(inspection.walk(entries, is_part, _MAX_PARTS, _list_referents))


def _list_referents(*objects: object) -> Iterator[object]:
    """Yield what these objects refer to, and what else is released together with them."""
    yield from gc.get_referents(*objects)
    for obj in objects:
        # Weak references to the object, such as those in a `weakref.WeakSet`.
        yield from weakref.getweakrefs(obj)
        if type(obj) is weakref.finalize:
            yield weakref.finalize._registry.get(obj)  # type: ignore[attr-defined]
        elif type(obj) is CodeType:
            yield from (obj.co_consts, obj.co_names, obj.co_linetable, obj.co_code)


def _find_handles(
    entries: Sequence[object], identities: Collection[Hashable], created: CreatedObjects
) -> set[Hashable]:
    """Return the handles that entries stand for; a part that cannot be inspected is one handle."""
    found: set[Hashable] = set()
    # An entry may itself be the number of a descriptor, and an attribute the number or the name of
    # a handle.
    by_value: list[Any] = [entry for entry in entries if type(entry) is int]
    for part in _parts(entries, created).values():
        if is_opaque_handle(type(part)):
            found.add(("opaque", id(part)))
            continue
        found |= handles_of(part, identities)
        if inspection.module_of_type(type(part)) != "builtins":
            by_value += _attributes(part)
    named = {handle for one in by_value for handle in handles_of(one, identities, by_value=True)}
    # Other numbers may equal those of descriptors, but do not include the highest new one.
    newest = max((one for one in identities if type(one) is int), default=None)
    return found | (named if newest is None or newest in named else set())


def _attributes(instance: object) -> list[Any]:
    """Return the attribute values of an instance, from its slots and its dict."""
    direct = gc.get_referents(instance)
    return [*direct, *(value for part in direct if type(part) is dict for value in part.values())]


def _is_plain_data(entry: object, created: CreatedObjects) -> bool:
    """Return whether an entry is only builtin objects; False for an int, which may be a handle."""
    if type(entry) is int:
        return False
    return all(
        inspection.module_of_type(type(part)) == "builtins"
        for part in _parts([entry], created).values()
    )


def _sum_bytes(resource: Resource, parts: Collection[object]) -> float:
    """Sum the bytes that count; infinite with parts of extension types but arrays and NumPy's."""
    arrays = inspection.array_types()
    # Without pymalloc, `sys.getallocatedblocks` returns 0, and malloc serves small requests too.
    least = 0 if resource.name == RESIDENT or not sys.getallocatedblocks() else MAX_POOL_BYTES
    total = 0
    for part in parts:
        kind = type(part)
        if id(kind) in arrays:
            total += inspection.size_of(part)
        elif inspection.is_of_extension(kind) and not inspection.module_of_type(kind).startswith(
            "numpy"
        ):
            return inf
        elif not resource.buffers_only:
            size = inspection.size_of(part)
            total += size if size > least else 0
            total += _LOCK_BYTES if inspection.module_of_type(kind) != "builtins" else 0
    return total


def count_exclusive(holders: Sequence[object]) -> int:
    """Count the new tracked objects that would be freed if the holders referred to nothing.

    New objects were created since `gc.freeze`. The holders are the objects of a cache that refer to
    its entries. The number is never too large: objects in cycles, and what others refer to as well,
    do not count.
    """
    new = newcomers()
    gone: Counter[int] = Counter()
    level, count = list(holders), 0
    # An object to which nothing else refers.
    ((_at, lone),) = _count_references({0: []})
    while level:
        parts = [
            part for part in gc.get_referents(*level) if id(part) in new or not gc.is_tracked(part)
        ]
        gone.update(map(id, parts))
        touched = {id(part): part for part in parts}
        # From here on, only `touched` refers to them.
        del parts
        level = [
            touched[at]
            for at, references in _count_references(touched)
            if references - lone == gone[at]
        ]
        count += sum(id(part) in new for part in level)
    return count


def _count_references(parts: Mapping[int, object]) -> list[tuple[int, int]]:
    return [(at, sys.getrefcount(part)) for at, part in parts.items()]
