"""Select new objects and growing containers as candidates and find their owners."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Final

from pytest_leakcheck.attribution.handle_kinds import is_of_extension, stand_for
from pytest_leakcheck.attribution.heap.gc_roots import is_ours
from pytest_leakcheck.attribution.heap.growing_containers import Growing, bytes_gained
from pytest_leakcheck.attribution.heap.object_kinds import kind_of
from pytest_leakcheck.attribution.heap.owner_search import Holders, find_owners
from pytest_leakcheck.attribution.object_inspection import array_types, last_entries, module_of_type, own_size

# Least number (or bytes) and most number of candidate objects, as a multiple of what is expected.
_MIN_RATIO: Final = 0.5
_MAX_RATIO: Final = 2.0
# Newest entries of a container that are inspected.
_NEWEST_ENTRIES: Final = 2
# Types of objects that accompany others and are not what is retained.
_AUXILIARY_TYPES: Final = (BuiltinFunctionType, CellType, FunctionType, MethodType, weakref.ReferenceType)


@dataclass(frozen=True, slots=True)
class Sought:
    """What is retained, as far as it is known.

    Attributes:
        iterations: The number of iterations in which it was created.
        rate: The number retained per iteration, where it is countable.
        size: Bytes retained per iteration, where known.
        identities: Identities of the handles that were created and still exist; None where what is retained is no
            handle.
        in_python: Whether Python's own allocators may have allocated it.
    """

    iterations: int
    rate: float | None = None
    size: float | None = None
    identities: Collection[Hashable] | None = None
    in_python: bool = False


def search(
    sought: Sought,
    came: Sequence[object],
    growing: Sequence[Growing],
    new: Collection[int],
    ignore: Collection[int] = (),
) -> Holders:
    """Find the owners of what is retained. Call it while nothing is frozen.

    Args:
        sought: What is retained.
        came: The tracked objects that were created in these iterations and still exist.
        growing: The containers and values that grew in these iterations.
        new: The ``id()`` of each object created since the measurement of the test began.
        ignore: The ``id()`` of each object of the harness.
    """
    own, builtin = _group_by_type(sought, came)
    candidates = [one for one in growing if _gain_may_fit(sought, one)]
    # The lists of this search refer to the candidates, too.
    ours = {*ignore, id(came), id(own), id(builtin), id(candidates), *map(id, own), *map(id, builtin)}
    iterations, rate = sought.iterations, sought.rate
    # The program's own types come first, then the containers, and last builtin types, which objects of any kind are
    # made of.
    searches: list[Callable[[], Holders]] = [
        *(partial(find_owners, candidates, iterations, kind, new, rate=rate, ignore=ours) for kind in own),
        partial(find_owners, candidates, iterations, (), new, rate=rate, size=sought.size, ignore=ours),
        *(partial(find_owners, candidates, iterations, kind, new, rate=rate, ignore=ours) for kind in builtin),
    ]
    reason = ""
    for find in searches:
        holders = find()
        if holders.owners:
            return holders
        reason = reason or holders.reason
    return Holders((), reason)


def _group_by_type(sought: Sought, came: Sequence[object]) -> tuple[list[list[object]], list[list[object]]]:
    """Group the new objects by type, keeping types that are frequent enough.

    Returns the types of the program itself, and the builtin ones.
    """
    by_kind: dict[str, list[object]] = defaultdict(list)
    for one in came:
        if type(one) not in _AUXILIARY_TYPES and not is_ours(one):
            by_kind[f"{module_of_type(type(one))}.{kind_of(one)}"].append(one)
    wanted = sought.iterations * (sought.rate or 1.0)
    often = [kind for kind in by_kind.values() if max(2.0, _MIN_RATIO * wanted) <= len(kind)]
    often = [kind for kind in often if _kind_may_fit(sought, kind, wanted)]
    # First the types that can contain the bytes, smallest first; others that are as frequent may be kept only for a
    # while.
    often.sort(key=lambda kind: (_bytes_of_kind(sought, kind), abs(len(kind) - wanted)))
    own = [kind for kind in often if not _is_builtin_kind(kind)]
    # Without a rate, what is retained may be untracked, and new tuples and lists are the harness's own as well.
    return own, [kind for kind in often if _is_builtin_kind(kind)] if sought.rate else []


def _bytes_of_kind(sought: Sought, kind: Sequence[object]) -> float:
    """Return the bytes of one object of this kind.

    Infinite where the objects together are too small to contain the bytes sought.
    """
    size = own_size(kind[-1], kind[-2], array_types()) if sought.size else 0
    return size if sought.size and len(kind) * size >= _MIN_RATIO * sought.size * sought.iterations else inf


def _is_builtin_kind(kind: Sequence[object]) -> bool:
    return module_of_type(type(kind[0])) == "builtins" or type(kind[0]).__module__ == "builtins"


def _kind_may_fit(sought: Sought, kind: Sequence[object], wanted: float) -> bool:
    """Return whether these objects of one type can be what is retained."""
    if sought.identities is not None:
        return len(kind) <= _MAX_RATIO * wanted + 1 and stand_for([(one,) for one in kind], sought.identities)
    return sought.in_python or is_of_extension(type(kind[0]))


def _gain_may_fit(sought: Sought, one: Growing) -> bool:
    """Return whether the entries that a container gained may be, or contain, what is retained."""
    if sought.identities is not None:
        return not one.is_value and stand_for(last_entries(one.holder, one.gained), sought.identities)
    if sought.in_python or sought.size is None:
        return True
    # Memory that C allocated can only be in the entries if they are as large, or if they include an object of an
    # extension type, which can keep memory that Python does not see.
    if bytes_gained(one) >= _MIN_RATIO * sought.size * sought.iterations:
        return True
    return not one.is_value and any(
        is_of_extension(type(part)) for pair in last_entries(one.holder, _NEWEST_ENTRIES) for part in pair
    )
