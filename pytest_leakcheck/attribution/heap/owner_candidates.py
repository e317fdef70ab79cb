"""Which of the objects that came, or of the containers that grew, is what is retained; and so who holds that."""

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

# Of what comes, so many times what is looked for may be it, from so many on.
_LEAST: Final = 0.5
_MOST: Final = 2.0
_NEWEST: Final = 2
# They come with other things, and are not what is retained.
_MEANS: Final = (BuiltinFunctionType, CellType, FunctionType, MethodType, weakref.ReferenceType)


@dataclass(frozen=True, slots=True)
class Sought:
    """What is retained, as far as it is known.

    Attributes:
        iterations: In how many it came.
        rate: Per iteration, where it is countable.
        size: Bytes per iteration, where that is known.
        identities: Of the things that came and are still there; None where what is retained has no identity.
        in_python: Python's own allocators handed it out.
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
    """Who holds it. To be called while nothing is frozen.

    Args:
        sought: What is looked for.
        came: The tracked objects that came in these iterations and are still there.
        growing: The containers that grew meanwhile.
        new: Identities of all that is new since the test began to be measured.
        ignore: Identities of the harness's own.
    """
    own, builtin = _kinds(sought, came)
    candidates = [one for one in growing if _may_be(sought, one)]
    # What is made in this search refers to what is looked for, too.
    ours = {*ignore, id(came), id(own), id(builtin), id(candidates), *map(id, own), *map(id, builtin)}
    iterations, rate = sought.iterations, sought.rate
    # First what the program defines itself; then the containers, and last what anything may be made of.
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


def _kinds(sought: Sought, came: Sequence[object]) -> tuple[list[list[object]], list[list[object]]]:
    """The objects that came, by type, where they come often enough: of the program's own types, and of builtin ones."""
    by_kind: dict[str, list[object]] = defaultdict(list)
    for one in came:
        if type(one) not in _MEANS and not is_ours(one):
            by_kind[f"{module_of_type(type(one))}.{kind_of(one)}"].append(one)
    wanted = sought.iterations * (sought.rate or 1.0)
    often = [kind for kind in by_kind.values() if max(2.0, _LEAST * wanted) <= len(kind)]
    often = [kind for kind in often if _may_be_kind(sought, kind, wanted)]
    # First what the bytes are in, the smallest of it; what else comes as often may only stay for a while.
    often.sort(key=lambda kind: (_bulk(sought, kind), abs(len(kind) - wanted)))
    own = [kind for kind in often if not _is_builtin(kind)]
    # Where it is not tracked itself, what comes with it are the harness's tuples and lists as well.
    return own, [kind for kind in often if _is_builtin(kind)] if sought.rate else []


def _bulk(sought: Sought, kind: Sequence[object]) -> float:
    """What things of this kind hold, in bytes, where what is sought can be in them by its size; else infinity."""
    size = own_size(kind[-1], kind[-2], array_types()) if sought.size else 0
    return size if sought.size and len(kind) * size >= _LEAST * sought.size * sought.iterations else inf


def _is_builtin(kind: Sequence[object]) -> bool:
    return module_of_type(type(kind[0])) == "builtins" or type(kind[0]).__module__ == "builtins"


def _may_be_kind(sought: Sought, kind: Sequence[object], wanted: float) -> bool:
    if sought.identities is not None:
        return len(kind) <= _MOST * wanted + 1 and stand_for([(one,) for one in kind], sought.identities)
    return sought.in_python or is_of_extension(type(kind[0]))


def _may_be(sought: Sought, one: Growing) -> bool:
    """Whether the entries that a container gained can be what is sought."""
    if sought.identities is not None:
        return not one.is_value and stand_for(last_entries(one.holder, one.gained), sought.identities)
    if sought.in_python or sought.size is None:
        return True
    # What C allocated is not an entry's own, unless it comes to as much, or has a part that Python does not see.
    if bytes_gained(one) >= _LEAST * sought.size * sought.iterations:
        return True
    return not one.is_value and any(
        is_of_extension(type(part)) for pair in last_entries(one.holder, _NEWEST) for part in pair
    )
