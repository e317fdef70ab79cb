"""Find the owner of what is retained, and the path to it from a root.

An owner is a container or an attribute that keeps what is retained. There are two kinds of evidence. A container that
gains entries at the rate of the leak owns them, whatever their type is. And an older object that refers to new ones, of
those that the collector tracks, keeps them; this also finds the owner of a chain of objects.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from types import FrameType, ModuleType
from typing import Final

from pytest_leakcheck.attribution.handle_kinds import stand_for
from pytest_leakcheck.attribution.heap.gc_roots import find_paths, is_ours, is_runners
from pytest_leakcheck.attribution.heap.growing_containers import LEAST, MOST, Growing, bytes_gained, fitting
from pytest_leakcheck.attribution.heap.object_kinds import AUXILIARY_TYPES, accompanies, kind_of
from pytest_leakcheck.attribution.heap.reference_text import describe_holder, steps_of
from pytest_leakcheck.attribution.object_inspection import (
    LRU_ENTRY_TYPE,
    amount,
    container_kind,
    describe_many,
    instance_dict,
    is_of_extension,
    last_entries,
    module_of_type,
    own_size,
    type_name,
    walk,
)
from pytest_leakcheck.model.culprit import Owner
from pytest_leakcheck.probes import clock

_CYCLE_REASON: Final = "held only by each other: a cycle that the garbage collector would free"
# Number of newest entries to inspect in a container.
_NEWEST_ENTRIES: Final = 2
# The most owners to search for.
_MAX_OWNERS: Final = 8
# Minimum shares of the survivors that all owners together hold, and that each holds in addition to the larger ones.
_MIN_HELD_SHARE: Final = 0.8
_MIN_ADDED_SHARE: Final = 0.1
_MAX_SAMPLED: Final = 24
_CHUNK_SIZE: Final = 1024
# The most new objects, and levels of new referrers, to follow in one search.
_MAX_REACHED: Final = 1_000_000
_MAX_LEVELS: Final = 10
# Types whose objects retain nothing.
_TRIVIAL_TYPES: Final = (int, bool, type(None), float)


@dataclass(frozen=True, slots=True)
class Sought:
    """What is known of what is retained; `rate` (objects) and `size` (bytes) are per iteration, where known.

    `identities`: the handles that still exist, if handles are retained. `in_python`: Python may have allocated it.
    """

    iterations: int
    rate: float | None = None
    size: float | None = None
    identities: Collection[Hashable] | None = None
    in_python: bool = False


@dataclass(frozen=True, slots=True)
class Holders:
    """The owners, best first, or the reason why there is none; no `objects` if only a path to survivors was found."""

    owners: tuple[Owner, ...]
    reason: str = ""
    objects: tuple[object, ...] = ()

    @property
    def is_cycle(self) -> bool:
        return self.reason == _CYCLE_REASON


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """An object that holds survivors (`reached`, by ``id()``); its new referent `entry` is one or leads to one."""

    holder: object
    entry: object
    reached: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A search through the references of new objects (`new`) for survivors (`counted`), both by ``id()``."""

    new: frozenset[int]
    counted: frozenset[int]
    check_time: Callable[[], object]

    def older_holders(self, skipped: set[int]) -> Iterator[_Hold]:
        # The dict of a module is listed too. Its other referents are private to its C code and may be dead: in Python
        # 3.12, `gc.get_referents` of `_asyncio` revives objects from a free list and makes it a ring.
        objects = [one for one in gc.get_objects() if type(one) is not ModuleType]
        older = [one for one in objects if id(one) not in self.new and id(one) not in skipped]
        for at in range(0, len(older), _CHUNK_SIZE):
            self.check_time()
            some = older[at : at + _CHUNK_SIZE]
            # Read many objects in one call into C, because few of them refer to a new object.
            if self.new.isdisjoint(map(id, gc.get_referents(*some))):
                continue
            for one in some:
                if not is_ours(one):
                    yield from self.hold_of(one)

    def hold_of(self, holder: object) -> Iterator[_Hold]:
        """Yield one `_Hold` if an object holds survivors, directly or through new objects."""
        entries = {id(one): one for one in gc.get_referents(holder) if id(one) in self.new and one is not holder}
        if found := self.counted & {*entries, *self.reachable(list(entries.values()))}:
            last = [one for one in entries.values() if id(one) in self.counted] or list(entries.values())
            yield _Hold(holder, last[-1], found)

    def reachable(self, start: Sequence[object]) -> set[int]:
        """Return the ``id()`` of each new object to which references from these lead, perhaps including these."""
        reached: set[int] = set()
        for level in walk(filter(self._is_new, gc.get_referents(*start)), self._is_new, _MAX_REACHED):
            self.check_time()
            reached |= level.keys()
        return reached

    def _is_new(self, one: object) -> bool:
        return id(one) in self.new and type(one) is not ModuleType


def search(  # noqa: PLR0913 - the evidence, one by one
    sought: Sought,
    came: Sequence[object],
    growing: Sequence[Growing],
    new: Collection[int],
    ignore: Collection[int] = (),
    *,
    deadline: float = inf,
) -> Holders:
    """Find the owners of what is retained, while nothing is frozen; after `deadline`, there is none.

    `came` are tracked objects that were created in these iterations and still exist; `growing` is from `Census.grown`.
    `new` has the ``id()`` of each object created since the measurement began: older objects that lead to it own it.
    `ignore` has those of objects that cannot be owners, such as the plugin's own.
    """

    def check_time() -> None:
        if clock.monotonic() > deadline:
            raise TimeoutError

    own, builtin = _group_by_type(sought, came)
    candidates = [one for one in growing if _gain_may_fit(sought, one)]
    # The lists that this function makes also refer to the candidates, so they must not count as owners.
    ours = {*ignore, id(came), id(own), id(builtin), id(candidates), *map(id, own), *map(id, builtin)}
    reason, listed = "", Holders(())
    # Types that are not builtin come first, then the containers. Builtin types come last, because objects of any kind
    # are made of them.
    for survivors in (*own, (), *builtin):
        try:
            holders = find_owners(sought, candidates, survivors, new, ours, check_time=check_time)
        except TimeoutError:
            return listed if listed.owners else Holders((), "the search ran out of time")
        if holders.owners and (sought.identities is None or not _is_list_of_library(holders.owners[0])):
            return holders
        listed = listed if listed.owners else holders
        reason = reason or holders.reason
    return listed if listed.owners else Holders((), reason)


def _is_list_of_library(owner: Owner) -> bool:
    """Return whether the standard library holds the handles, which may only list what the program keeps."""
    return owner.name.partition(".")[0] in sys.stdlib_module_names or owner.root.startswith("thread ")


def _group_by_type(sought: Sought, came: Sequence[object]) -> tuple[list[list[object]], list[list[object]]]:
    """Group the new objects that may be retained by type: not builtin, then builtin (none if the rate is unknown)."""
    by_kind: dict[str, list[object]] = defaultdict(list)
    for one in came:
        if type(one) not in AUXILIARY_TYPES and not is_ours(one):
            by_kind[f"{module_of_type(type(one))}.{kind_of(one)}"].append(one)
    wanted = sought.iterations * (sought.rate or 1.0)
    often = [kind for kind in by_kind.values() if max(2.0, LEAST * wanted) <= len(kind)]
    often = [kind for kind in often if _kind_may_fit(sought, kind, wanted)]
    # The smallest objects that are large enough for the retained bytes come first; others may be as frequent.
    often.sort(key=lambda kind: (_bytes_of_kind(sought, kind), abs(len(kind) - wanted)))
    own = [kind for kind in often if not _is_builtin_kind(kind)]
    # Without a rate, builtin types are no evidence: the plugin itself creates tuples and lists.
    return own, [kind for kind in often if _is_builtin_kind(kind)] if sought.rate else []


def _bytes_of_kind(sought: Sought, kind: Sequence[object]) -> float:
    """Return the bytes of one object; infinite if the retained bytes are unknown or exceed what all objects hold."""
    size = own_size(kind[-1], kind[-2]) if sought.size else 0
    return size if sought.size and len(kind) * size >= LEAST * sought.size * sought.iterations else inf


def _is_builtin_kind(kind: Sequence[object]) -> bool:
    return module_of_type(type(kind[0])) == "builtins"


def _kind_may_fit(sought: Sought, kind: Sequence[object], wanted: float) -> bool:
    """Return whether these objects of one type can be what is retained."""
    if sought.identities is not None:
        return len(kind) <= MOST * wanted + 1 and stand_for([(one,) for one in kind], sought.identities)
    return sought.in_python or is_of_extension(type(kind[0]))


def _gain_may_fit(sought: Sought, one: Growing) -> bool:
    """Return whether the entries that a container gained may be, or contain, what is retained."""
    if sought.identities is not None:
        return not one.is_value and stand_for(last_entries(one.holder, one.gained), sought.identities)
    if sought.in_python or sought.size is None:
        return True
    # Memory that C code allocated belongs to large enough entries, or to objects of an extension type.
    if bytes_gained(one) >= LEAST * sought.size * sought.iterations:
        return True
    return not one.is_value and any(
        is_of_extension(type(part)) for pair in last_entries(one.holder, _NEWEST_ENTRIES) for part in pair
    )


def find_owners(  # noqa: PLR0913 - the evidence, one by one
    sought: Sought,
    growing: Sequence[Growing],
    survivors: Sequence[object] = (),
    new: Collection[int] = (),
    ignore: Collection[int] = (),
    *,
    check_time: Callable[[], object] = bool,
) -> Holders:
    """Find the owners of `survivors`, all new objects of one kind; if there are none, of what grows as expected."""
    skipped = {*ignore, id(growing), id(survivors)}
    candidates = [one for one in growing if id(one.holder) not in skipped and not _newest_is_weak(one, 1)]
    if survivors:
        counted = frozenset(map(id, survivors))
        within = _Search(counted | frozenset(new), counted, check_time)
        return _find_owners_of_survivors(survivors, candidates, sought.iterations, skipped, within)
    fit = fitting(candidates, sought.iterations, sought.rate, sought.size)
    # If a container with weak keys grows, another one keeps its keys.
    fit = (tuple(one for one in fit if not _newest_is_weak(one, 0)) or fit)[:_MAX_OWNERS]
    if not fit:
        return Holders((), "no container or value grew at this rate")
    paths = find_paths([one.holder for one in fit], skipped)
    found = [
        (_describe_owner(one, path, sought.iterations), one.holder, is_runners(path))
        for one, path in zip(fit, paths, strict=True)
        if path
    ]
    if not found:
        what = describe_holder(fit[0].holder)
        return Holders((), f"a {what} grows, and is held outside Python objects (C)")
    if sought.identities is not None:
        # All of them stand for the handles.
        found.sort(key=lambda one: _is_list_of_library(one[0]))
    return _without_test_runner(found)


def _find_owners_of_survivors(
    survivors: Sequence[object],
    candidates: Sequence[Growing],
    iterations: int,
    skipped: set[int],
    search: _Search,
) -> Holders:
    new, counted = search.new, search.counted
    growing = {id(one.holder): one for one in candidates if not one.is_value}
    holds = [hold for one in growing.values() for hold in search.hold_of(one.holder)]
    if not _select_largest(holds, len(counted)):
        holds = list(search.older_holders(skipped))
    largest = sorted(holds, key=lambda one: -len(one.reached))[:_MAX_OWNERS]
    if not _select_largest(largest, len(counted)):
        return _report_unheld(survivors, search, skipped)
    found = []
    paths = find_paths([hold.holder for hold in largest], skipped)
    path_to = {id(hold): path for hold, path in zip(largest, paths, strict=True)}
    # An object without a path from a root is temporary, or held by C.
    lasting = _select_largest([hold for hold in largest if path_to[id(hold)]], len(counted))
    for hold in lasting:
        path = path_to[id(hold)]
        steps, name = steps_of((*path, *_end_of_path(hold, new)), hold.holder)
        some = [one for one in survivors if id(one) in hold.reached][-_MAX_SAMPLED:]
        container = growing.get(id(hold.holder))
        gained = container.gained / iterations if container else 0.0
        text = describe_many(some, len(hold.reached))
        entries = _newest_payloads(container) if container else some
        if container and not (type(entries[0]) is type(survivors[0]) or accompanies(entries[0])):
            # The entries contain the survivors, such as errors with tracebacks.
            text = describe_many(entries, container.gained)
        owner = Owner(name, describe_holder(path[0]), steps, text, gained)
        found.append((owner, hold.holder, is_runners(path)))
    if not found:
        what = describe_holder(largest[0].holder)
        return Holders((), f"they are held by a {what}, which is held outside Python objects (C)")
    return _without_test_runner(found)


def _select_largest(holds: list[_Hold], count: int) -> list[_Hold]:
    """Select the largest holds that together hold enough of the survivors; none if that is not enough."""
    chosen: list[_Hold] = []
    reached: set[int] = set()
    for hold in sorted(holds, key=lambda one: -len(one.reached)):
        if len(reached) >= _MIN_HELD_SHARE * count:
            break
        # Survivors that a larger hold holds as well are no further evidence.
        if len(hold.reached - reached) >= _MIN_ADDED_SHARE * count:
            chosen.append(hold)
            reached |= hold.reached
    return chosen[:_MAX_OWNERS] if len(reached) >= _MIN_HELD_SHARE * count else []


def _end_of_path(hold: _Hold, new: frozenset[int]) -> tuple[object, ...]:
    """Return the end of the path to a survivor: the entry, and one new object in it if it is an older instance's dict."""
    # Such a dict counts as new if the collector began to track it late, once it held a tracked object.
    if instance_dict(hold.holder) is not hold.entry:
        return (hold.entry,)
    return (hold.entry, *[one for one in gc.get_referents(hold.entry) if id(one) in new][-1:])


def _report_unheld(survivors: Sequence[object], search: _Search, skipped: set[int]) -> Holders:
    """Report the path from a root to survivors that no older object holds, or why there is none: C code, or a cycle."""
    inner = search.reachable(survivors)
    heads = [one for one in survivors if id(one) not in inner] or list(survivors[:1])
    (path,) = find_paths(heads[-1:], {*skipped, id(heads)})
    if len(path) > 1:
        steps, name = steps_of(path, path[-2])
        return Holders((Owner(name, describe_holder(path[0]), steps, type_name(heads[-1]), 0.0),))
    # C code may hold a new object that refers to the survivors, such as the function whose closure contains them.
    if lost := references_outside(_with_new_referrers(heads[-_MAX_SAMPLED:], search.new - skipped)):
        plural = "reference is" if lost == 1 else "references are"
        return Holders((), f"{lost} {plural} held outside Python objects (C)")
    if all(id(one) in inner for one in survivors):
        return Holders((), _CYCLE_REASON)
    return Holders((), "their owner was not found")


def _with_new_referrers(start: list[object], new: frozenset[int]) -> list[object]:
    """Return these objects and the new objects that refer to them, also indirectly."""
    found = {id(one): one for one in start}
    level = start
    for _ in range(_MAX_LEVELS):
        # Frames are left out, because the interpreter holds them.
        referrers = [one for one in gc.get_referrers(*level) if id(one) in new and type(one) is not FrameType]
        own = {id(found), id(level)}
        level = [one for one in referrers if id(one) not in found and id(one) not in own][:_MAX_SAMPLED]
        found.update((id(one), one) for one in level)
        if not level:
            break
    return list(found.values())


def references_outside(survivors: Sequence[object]) -> int:
    """Count the references to these objects that no Python object accounts for."""
    marker = [object()]
    # `getrefcount` also counts the references that its own call adds. The 1 is the reference in the list.
    asking = sys.getrefcount(marker[0]) - 1
    missing = 0
    for at in range(len(survivors)):
        place = id(survivors[at])
        holders = gc.get_referrers(survivors[at])
        known = sum(1 for holder in holders for part in gc.get_referents(holder) if id(part) == place)
        del holders
        missing += max(0, sys.getrefcount(survivors[at]) - asking - known)
    return missing


def _describe_owner(one: Growing, path: Sequence[object], iterations: int) -> Owner:
    if one.is_value:
        entry = one.value
        holds = f"one {type_name(entry)} of {amount(entry):,} B that grows"
    else:
        entries = _newest_payloads(one)
        entry = entries[0]
        holds = describe_many(entries, one.gained)
        if type_name(entry) == LRU_ENTRY_TYPE:
            holds = f"{one.gained} results"
    steps, name = steps_of((*path, entry), one.holder)
    return Owner(name, describe_holder(path[0]), steps, holds, one.gained / iterations)


def _newest_payloads(one: Growing) -> list[object]:
    """Return the parts of new entries that retain something: the value, or the key, as in a dict used as a set."""
    pairs = last_entries(one.holder, min(one.gained, _MAX_SAMPLED))
    return [key if any(type(value) is kind for kind in _TRIVIAL_TYPES) else value for key, value in pairs]


def _newest_is_weak(one: Growing, at: int) -> bool:
    """Return whether the newest key (0) or value (1) of a container keeps nothing alive; a dead reference is kept itself."""
    if one.is_value or container_kind(one.holder) is None:
        return False
    return any(
        issubclass(type(pair[at]), weakref.ref) and weakref.ref.__call__(pair[at]) is not None  # type: ignore[arg-type]
        for pair in last_entries(one.holder, 1)
    )


def _without_test_runner(found: Sequence[tuple[Owner, object, bool]]) -> Holders:
    """Build the result without owners in the test runner, which always holds many objects that grow with the test."""
    other = [(owner, holder) for owner, holder, is_runners in found if not is_runners]
    if not other:
        return Holders((), f"the only objects that grow at this rate belong to the test runner ({found[0][0].root})")
    # Running frames come last, because they hold many objects only for a while.
    other.sort(key=lambda pair: pair[0].root.startswith("frame "))
    owners, objects = zip(*other, strict=True)
    return Holders(owners, objects=objects)
