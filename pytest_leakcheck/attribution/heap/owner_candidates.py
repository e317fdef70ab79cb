"""Select new objects and growing containers as candidates and find their owners.

An owner is the container or attribute that keeps an object alive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from pytest_leakcheck.attribution.handle_kinds import stand_for
from pytest_leakcheck.attribution.heap.gc_roots import is_ours
from pytest_leakcheck.attribution.heap.growing_containers import Growing, bytes_gained
from pytest_leakcheck.attribution.heap.object_kinds import AUXILIARY_TYPES, kind_of
from pytest_leakcheck.attribution.heap.owner_search import Holders, find_owners
from pytest_leakcheck.attribution.object_inspection import (
    array_types,
    is_of_extension,
    last_entries,
    module_of_type,
    own_size,
)
from pytest_leakcheck.probes import clock

# Candidates fit if their number or their bytes are at least `_MIN_RATIO` times the expected amount, and their number is
# at most `_MAX_RATIO` times the expected one.
_MIN_RATIO: Final = 0.5
_MAX_RATIO: Final = 2.0
# Number of newest entries to inspect in a container.
_NEWEST_ENTRIES: Final = 2


@dataclass(frozen=True, slots=True)
class Sought:
    """The known properties of what is retained and whose owner is sought.

    Attributes:
        rate: The number retained per iteration, where it is countable.
        size: Bytes retained per iteration, where known.
        identities: Identities of the handles that were created and still exist; None if no handles are retained.
        in_python: Whether Python's own allocators may have allocated it.
    """

    iterations: int
    rate: float | None = None
    size: float | None = None
    identities: Collection[Hashable] | None = None
    in_python: bool = False


def search(  # noqa: PLR0913 - the evidence, one by one
    sought: Sought,
    came: Sequence[object],
    growing: Sequence[Growing],
    new: Collection[int],
    ignore: Collection[int] = (),
    *,
    deadline: float = inf,
) -> Holders:
    """Find the owners of what is retained. Call it while nothing is frozen, because frozen objects are not listed.

    Args:
        came: The tracked objects that were created in these iterations and still exist.
        new: The ``id()`` of each object created since the measurement of the test began.
        ignore: The ``id()`` of each object that cannot be an owner, such as the plugin's own objects.
        deadline: When the search ends without a result, by ``clock.monotonic``.
    """

    def check_time() -> None:
        if clock.monotonic() > deadline:
            raise TimeoutError

    own, builtin = _group_by_type(sought, came)
    candidates = [one for one in growing if _gain_may_fit(sought, one)]
    # The lists that this function makes also refer to the candidates, so they must not count as owners.
    ours = {*ignore, id(came), id(own), id(builtin), id(candidates), *map(id, own), *map(id, builtin)}
    find = partial(find_owners, candidates, sought.iterations, rate=sought.rate, ignore=ours, check_time=check_time)
    # Types that are not builtin come first, then the containers. Builtin types come last, because objects of any kind
    # are made of them.
    searches: list[Callable[[], Holders]] = [
        *(partial(find, kind, new) for kind in own),
        partial(find, (), new, size=sought.size),
        *(partial(find, kind, new) for kind in builtin),
    ]
    reason = ""
    for one in searches:
        try:
            holders = one()
        except TimeoutError:
            return Holders((), "not resolved: the search ran out of time")
        if holders.owners:
            return holders
        reason = reason or holders.reason
    return Holders((), reason)


def _group_by_type(sought: Sought, came: Sequence[object]) -> tuple[list[list[object]], list[list[object]]]:
    """Group the new objects that may be retained by type: not builtin, then builtin (none if the rate is unknown)."""
    by_kind: dict[str, list[object]] = defaultdict(list)
    for one in came:
        if type(one) not in AUXILIARY_TYPES and not is_ours(one):
            by_kind[f"{module_of_type(type(one))}.{kind_of(one)}"].append(one)
    wanted = sought.iterations * (sought.rate or 1.0)
    often = [kind for kind in by_kind.values() if max(2.0, _MIN_RATIO * wanted) <= len(kind)]
    often = [kind for kind in often if _kind_may_fit(sought, kind, wanted)]
    # Types whose objects are large enough to contain the retained bytes come first, the smallest ones before the
    # others. Objects of another type may be as frequent, but kept only for a while.
    often.sort(key=lambda kind: (_bytes_of_kind(sought, kind), abs(len(kind) - wanted)))
    own = [kind for kind in often if not _is_builtin_kind(kind)]
    # If the rate is unknown, builtin types are no evidence: the retained objects may be untracked, and the plugin
    # itself creates tuples and lists.
    return own, [kind for kind in often if _is_builtin_kind(kind)] if sought.rate else []


def _bytes_of_kind(sought: Sought, kind: Sequence[object]) -> float:
    """Return the bytes of one object; infinite if the retained bytes are unknown or exceed what all objects hold."""
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
    # Memory that C code allocated can belong to the entries in two cases only. They are large enough, or they include
    # an object of an extension type, which can keep memory outside Python objects.
    if bytes_gained(one) >= _MIN_RATIO * sought.size * sought.iterations:
        return True
    return not one.is_value and any(
        is_of_extension(type(part)) for pair in last_entries(one.holder, _NEWEST_ENTRIES) for part in pair
    )
