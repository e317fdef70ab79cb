"""Who holds what is retained: the container or attribute that keeps it, and the way to that from a root.

Two kinds of evidence lead there. A container that gains entries at the rate of the leak owns them, whatever they are. And
of things that the collector tracks it is known which are new: what is older and refers to them keeps them, which finds a
chain too, where each holds the one before. Where neither fits, nothing is named, and it is said what is known.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Final

from pytest_leakcheck.attribution.heap.gc_roots import find_paths, is_ours, is_runners
from pytest_leakcheck.attribution.heap.growing_containers import Growing, fitting
from pytest_leakcheck.attribution.heap.reference_text import describe_holder, steps_of
from pytest_leakcheck.attribution.object_inspection import (
    all_objects,
    amount,
    array_types,
    container_kind,
    describe_many,
    instance_dict,
    last_entries,
    type_name,
)
from pytest_leakcheck.model.culprit import Owner

_CYCLE: Final = "held by nothing but each other: a cycle that the collector would free"
# That many owners are sought at most, and named.
_OWNERS: Final = 8
# Together they must hold so much of what survives; one alone no less than the other.
_ENOUGH: Final = 0.8
_SOME: Final = 0.1
_SHOWN: Final = 24
_CHUNK: Final = 1024
# Of what an older object holds, so many are followed.
_REACH: Final = 200_000
_LEVELS: Final = 10
# In a bounded `lru_cache` what was returned lies in these, out of sight.
_RESULT: Final = "_lru_list_elem"
_TRIVIAL: Final = (int, bool, type(None), float)


@dataclass(frozen=True, slots=True)
class Holders:
    """The owners, best first, with the objects that they are; or why there is none."""

    owners: tuple[Owner, ...]
    reason: str = ""
    objects: tuple[object, ...] = ()

    @property
    def is_cycle(self) -> bool:
        return self.reason == _CYCLE


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """An object that holds survivors: one of them, and which it reaches."""

    holder: object
    entry: object
    reached: frozenset[int]


def find_owners(  # noqa: PLR0913 - the evidence, one by one
    growing: Sequence[Growing],
    iterations: int,
    survivors: Sequence[object] = (),
    new: Collection[int] = (),
    *,
    rate: float | None = None,
    size: float | None = None,
    ignore: Collection[int] = (),
) -> Holders:
    """Who holds what is retained in each iteration. To be called while nothing is frozen.

    Args:
        growing: What has grown, from `Census.grown`.
        iterations: In how many.
        survivors: New objects of the kind that is retained, if the collector tracks it; all of them, and no others.
        new: Identities of all that is new, whatever its kind (`watch.new_descriptors` of both times): what is reached through it is
            not held by it.
        rate: Things retained per iteration, where they are countable.
        size: Bytes retained per iteration, where that is known.
        ignore: Identities of the caller's own objects.
    """
    skipped = {*ignore, id(growing), id(survivors)}
    candidates = [one for one in growing if id(one.holder) not in skipped and not _is_weak(one)]
    if survivors:
        return _owners_of(survivors, candidates, iterations, skipped, frozenset(new))
    fit = _without_weak_keys(fitting(candidates, iterations, rate, size))[:_OWNERS]
    if not fit:
        return Holders((), "not resolved: no container and no value has grown at that rate")
    paths = find_paths([one.holder for one in fit], skipped)
    found = [
        (_owner(one, path, iterations), one.holder, is_runners(path))
        for one, path in zip(fit, paths, strict=True)
        if path
    ]
    if not found:
        what = describe_holder(fit[0].holder)
        return Holders((), f"not resolved: a {what} grows, and is held outside Python objects (C)")
    return _without_runners(found)


def _owners_of(
    survivors: Sequence[object],
    candidates: Sequence[Growing],
    iterations: int,
    skipped: set[int],
    later: frozenset[int],
) -> Holders:
    """Who holds these new objects."""
    counted = frozenset(map(id, survivors))
    new = counted | later
    growing = {id(one.holder): one for one in candidates if not one.is_value}
    holds = [hold for one in growing.values() for hold in _hold(one.holder, new, counted)]
    if not _enough(holds, len(counted)):
        holds = list(_boundary(new, counted, skipped))
    largest = sorted(holds, key=lambda one: -len(one.reached))[:_OWNERS]
    if not _enough(largest, len(counted)):
        return _unheld(survivors, new, skipped)
    found = []
    paths = find_paths([hold.holder for hold in largest], skipped)
    path_to = {id(hold): path for hold, path in zip(largest, paths, strict=True)}
    # What cannot be reached from anywhere holds for a moment, or for C.
    lasting = _enough([hold for hold in largest if path_to[id(hold)]], len(counted))
    for hold in lasting:
        if path := path_to[id(hold)]:
            steps, name = steps_of((*path, *_entry(hold, new)), hold.holder)
            some = [one for one in survivors if id(one) in hold.reached][-_SHOWN:]
            gained = growing[id(hold.holder)].gained / iterations if id(hold.holder) in growing else 0.0
            text = describe_many(some, len(hold.reached), array_types())
            owner = Owner(name, describe_holder(path[0]), steps, text, gained)
            found.append((owner, hold.holder, is_runners(path)))
    if not found:
        what = describe_holder(largest[0].holder)
        return Holders((), f"not resolved: they are held by a {what}, and that is held outside Python objects (C)")
    return _without_runners(found)


def _enough(holds: list[_Hold], count: int) -> list[_Hold]:
    """The fewest of them that hold enough of the survivors; none if all together do not."""
    chosen: list[_Hold] = []
    reached: set[int] = set()
    for hold in sorted(holds, key=lambda one: -len(one.reached)):
        if len(reached) >= _ENOUGH * count:
            break
        # What another holds too tells nothing more.
        if len(hold.reached - reached) >= _SOME * count:
            chosen.append(hold)
            reached |= hold.reached
    return chosen[:_OWNERS] if len(reached) >= _ENOUGH * count else []


def _boundary(new: frozenset[int], counted: frozenset[int], skipped: set[int]) -> Iterator[_Hold]:
    """The older objects that refer to new ones."""
    objects = all_objects()
    older = [one for one in objects if id(one) not in new and id(one) not in skipped]
    for at in range(0, len(older), _CHUNK):
        some = older[at : at + _CHUNK]
        # In C for many at once; few of them refer to anything new.
        if new.isdisjoint(map(id, gc.get_referents(*some))):
            continue
        for one in some:
            if not is_ours(one):
                yield from _hold(one, new, counted)


def _hold(holder: object, new: frozenset[int], counted: frozenset[int]) -> Iterator[_Hold]:
    """What it holds of the survivors, if any: directly, or through what is new."""
    entries = {id(one): one for one in gc.get_referents(holder) if id(one) in new and one is not holder}
    if found := counted & {*entries, *_reached(list(entries.values()), new)}:
        last = [one for one in entries.values() if id(one) in counted] or list(entries.values())
        yield _Hold(holder, last[-1], found)


def _reached(start: Sequence[object], new: frozenset[int]) -> set[int]:
    """What of the new can be reached from these; they themselves only where another leads back to them."""
    reached: set[int] = set()
    level = start
    while level and len(reached) < _REACH:
        inner = {
            id(one): one
            for one in gc.get_referents(*level)
            if id(one) in new and id(one) not in reached and type(one) is not ModuleType
        }
        reached |= inner.keys()
        level = list(inner.values())
    return reached


def _entry(hold: _Hold, new: frozenset[int]) -> tuple[object, ...]:
    """The one that stands for all, with the instance's dict in between: from when it holds such a thing it is tracked."""
    if instance_dict(hold.holder) is not hold.entry:
        return (hold.entry,)
    return (hold.entry, *[one for one in gc.get_referents(hold.entry) if id(one) in new][-1:])


def _unheld(survivors: Sequence[object], new: frozenset[int], skipped: set[int]) -> Holders:
    """No older object holds them: a running frame may, or C, or nothing does."""
    inner = _reached(survivors, new)
    heads = [one for one in survivors if id(one) not in inner] or list(survivors[:1])
    (path,) = find_paths(heads[-1:], {*skipped, id(heads)})
    if len(path) > 1:
        steps, name = steps_of(path, path[-2])
        return Holders((Owner(name, describe_holder(path[0]), steps, type_name(heads[-1]), 0.0),))
    # Of what is new, something further out may be what is held: of a function, what is in its closure.
    if lost := references_outside(_outwards(heads[-_SHOWN:], new - skipped)):
        plural = "reference is" if lost == 1 else "references are"
        return Holders((), f"not resolved: {lost} {plural} held outside Python objects (C)")
    if all(id(one) in inner for one in survivors):
        return Holders((), _CYCLE)
    return Holders((), "not resolved: what holds them was not found")


def _outwards(start: list[object], new: frozenset[int]) -> list[object]:
    """These, and what is new and refers to them, directly or not."""
    found = {id(one): one for one in start}
    level = start
    for _ in range(_LEVELS):
        # What runs may be among them in Python 3.10, and is held by what runs.
        referrers = [one for one in gc.get_referrers(*level) if id(one) in new and type(one) is not FrameType]
        own = {id(found), id(level)}
        level = [one for one in referrers if id(one) not in found and id(one) not in own][:_SHOWN]
        found.update((id(one), one) for one in level)
        if not level:
            break
    return list(found.values())


def references_outside(survivors: Sequence[object]) -> int:
    """How many references to these objects no Python object accounts for."""
    marker = [object()]
    # What it costs to ask, beyond the one reference that the list has.
    asking = sys.getrefcount(marker[0]) - 1
    missing = 0
    for at in range(len(survivors)):
        place = id(survivors[at])
        holders = gc.get_referrers(survivors[at])
        known = sum(1 for holder in holders for part in gc.get_referents(holder) if id(part) == place)
        del holders
        missing += max(0, sys.getrefcount(survivors[at]) - asking - known)
    return missing


def _owner(one: Growing, path: Sequence[object], iterations: int) -> Owner:
    arrays = array_types()
    if one.is_value:
        entry = one.value
        holds = f"one {type_name(entry)} of {amount(entry, arrays):,} B that grows"
    else:
        entries = [_payload(key, value) for key, value in last_entries(one.holder, min(one.gained, _SHOWN))]
        entry = entries[0]
        holds = describe_many(entries, one.gained, arrays)
        if type_name(entry) == _RESULT:
            holds = f"{one.gained} results"
    steps, name = steps_of((*path, entry), one.holder)
    return Owner(name, describe_holder(path[0]), steps, holds, one.gained / iterations)


def _payload(key: object, value: object) -> object:
    """Of an entry, what there is to retain: of a dict that is used as a set, the keys."""
    return key if any(type(value) is kind for kind in _TRIVIAL) else value


def _is_weak(one: Growing) -> bool:
    """Whether it refers to its entries weakly, and so keeps nothing; a reference to what is gone is itself kept."""
    if one.is_value or container_kind(one.holder) is None:
        return False
    return any(_is_live(value) for _key, value in last_entries(one.holder, 1))


def _is_live(one: object) -> bool:
    return issubclass(type(one), weakref.ref) and weakref.ref.__call__(one) is not None  # type: ignore[arg-type]


def _without_weak_keys(growing: Sequence[Growing]) -> tuple[Growing, ...]:
    """Values go with their keys in a ``WeakKeyDictionary``: whatever else grows is what keeps the keys."""
    strong = tuple(one for one in growing if one.is_value or not _has_weak_key(one.holder))
    return strong or tuple(growing)


def _has_weak_key(one: object) -> bool:
    return any(_is_live(key) for key, _value in last_entries(one, 1))


def _without_runners(found: Sequence[tuple[Owner, object, bool]]) -> Holders:
    """What the test runner holds is no finding: it holds the test itself, and much that grows with it."""
    other = [(owner, holder) for owner, holder, is_runners in found if not is_runners]
    if not other:
        return Holders((), f"not resolved: what grows at that rate is the test runner's ({found[0][0].root})")
    # What runs holds much for a while.
    other.sort(key=lambda pair: pair[0].root.startswith("frame "))
    owners, objects = zip(*other, strict=True)
    return Holders(owners, objects=objects)
