"""Find the owner of what is retained, and the path to it from a root.

An owner is a container or an attribute that keeps what is retained. There are two kinds of
evidence. A container that gains entries at the rate of the leak owns them, whatever their type is.
And an older object that refers to new ones, of those that the collector tracks, keeps them; this
also finds the owner of a chain of objects.
"""

from __future__ import annotations

import gc
import signal
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Literal

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.handles import MAX_OWN_DEPTH, SAMPLE_SIZE, stand_for
from pytest_leakcheck.attribution.heap.growing_containers import (
    LEAST,
    MOST,
    GrowingContainer,
    are_shares,
    bytes_gained,
    fitting,
    in_chunks,
)
from pytest_leakcheck.attribution.heap.object_kinds import AUXILIARY_TYPES, accompanies, kind_of
from pytest_leakcheck.attribution.heap.reference_paths import (
    UNNAMED,
    describe_holder,
    describe_owner,
    find_paths,
    is_ours,
    is_runners,
    kept_by_interpreter,
)
from pytest_leakcheck.model.culprit import OutOfTime, Owner, RootKind, Step
from pytest_leakcheck.probes import clock

_NOTHING_GREW: Final = "no container or value grew at this rate"
_NONE_FITS: Final = "no container that grew at this rate could be shown to hold it"
# Number of newest entries to inspect in a container.
_NEWEST_ENTRIES: Final = 2
# The most owners to search for.
_MAX_OWNERS: Final = 8
# Minimum shares of the survivors that all owners together hold, and that each holds in addition to
# the larger ones.
_MIN_HELD_SHARE: Final = 0.8
_MIN_ADDED_SHARE: Final = 0.1
# The most new objects, and levels of new referrers, to follow in one search.
_MAX_REACHED: Final = 1_000_000
_MAX_LEVELS: Final = 10
# These bypass attributes of derived types.
_target_of: Final[Callable[[Any], object]] = weakref.ref.__call__
_callback_of: Final[Callable[[Any], object]] = weakref.ref.__dict__["__callback__"].__get__
# Types whose objects retain nothing.
_TRIVIAL_TYPES: Final = (int, bool, type(None), float)


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """What is known of what is retained.

    `rate` (objects) and `size` (bytes) are per iteration, where known. `identities`: the handles
    that still exist, if handles are retained. `in_python`: Python may have allocated it. `kind`:
    the type that all of it has, by its ``id()``; 0 if unknown. `more`: how many more objects of
    each type exist now, by its ``id()``; None if unknown. `exits`: how many more callbacks `atexit`
    has. `unfit`: the containers whose new entries do not stand for it, by ``id()``. `are_numbers`:
    the handles are descriptors without an object of Python. `least`: the amount, `held_as`
    tracked objects, blocks or bytes, that owners of this must hold; 0 if it is not compared.
    """

    iterations: int
    rate: float | None = None
    size: float | None = None
    identities: Collection[Hashable] | None = None
    in_python: bool = False
    kind: int = 0
    more: Mapping[int, int] | None = None
    exits: int = 0
    unfit: frozenset[int] = frozenset()
    are_numbers: bool = False
    least: float = 0.0
    held_as: Literal["objects", "blocks", "bytes"] = "objects"

    def fits(self, entries: Sequence[tuple[object, ...]]) -> bool:
        """Return whether entries (tuples of their parts) stand for most of the handles."""
        return stand_for(entries, self.identities or (), are_numbers=self.are_numbers)

    def remaining(self, some: Sequence[object]) -> int:
        """Return how many of these new objects of one type did not replace another one."""
        return (
            len(some) if self.more is None else min(len(some), self.more.get(id(type(some[0])), 0))
        )


@dataclass(frozen=True, slots=True)
class Holders:
    """The owners, best first, or the reason why there is none.

    If only a path to survivors was found, there are no `objects`. If the owners are `joint`, each
    holds a share; else one is enough.
    """

    owners: tuple[Owner, ...]
    reason: str = ""
    objects: tuple[object, ...] = ()
    joint: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Hold:
    """An object that holds survivors (`reached`, by ``id()``) through its new referent `entry`."""

    holder: object
    entry: object
    reached: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    """A search of references from new objects (`new`) to survivors (`counted`), by ``id()``."""

    # `growing` has the containers that have grown, and `skipped` what cannot hold them, which the
    # search adds to.

    new: frozenset[int]
    counted: frozenset[int]
    growing: Mapping[int, GrowingContainer]
    skipped: set[int]
    deadline: float = inf

    def check_time(self) -> None:
        if clock.monotonic() > self.deadline:
            raise TimeoutError

    def older_holders(self) -> Iterator[_Hold]:
        # The dict of a module is listed too. Its other referents are private to its C code and may
        # be dead: in Python 3.12, `gc.get_referents` of `_asyncio` revives objects from a free list
        # and makes it a ring.
        objects = [one for one in gc.get_objects() if type(one) is not ModuleType]
        older = [one for one in objects if id(one) not in self.new and id(one) not in self.skipped]
        for some in in_chunks(older):
            self.check_time()
            # Read many objects in one call into C, because few of them refer to a new object.
            if self.new.isdisjoint(map(id, gc.get_referents(*some))):
                continue
            for obj in some:
                if not is_ours(obj):
                    yield from self.hold_of(obj)

    def hold_of(self, holder: object) -> Iterator[_Hold]:
        """Yield one `_Hold` if an object holds survivors, directly or through new objects."""
        entries = {
            id(entry): entry
            for entry in gc.get_referents(holder)
            if id(entry) in self.new and entry is not holder
        }
        if found := self.counted & {*entries, *self.reachable(list(entries.values()))}:
            last = [one for one in entries.values() if id(one) in self.counted] or list(
                entries.values()
            )
            if self.follows(last[-1], entries):
                self.skipped.add(id(holder))
            else:
                yield _Hold(holder, last[-1], found)

    def follows(self, entry: object, beside: Collection[int]) -> bool:
        """Return whether an entry keeps nothing alive, because it only accompanies a new object."""
        # It is a weak reference to it, or holds one whose callback lies `beside` it in the same
        # registry, by ``id()``. A dead reference is kept itself, and so is an object that the entry
        # refers to in another way as well.
        parts = inspection.parts_of(
            islice(
                inspection.walk(
                    (entry,), lambda part: not inspection.is_shared(part), inspection.MAX_PARTS
                ),
                MAX_OWN_DEPTH,
            )
        )
        for part in parts.values():
            target = _target_of(part) if issubclass(type(part), weakref.ref) else None
            if target is not None and part is entry:
                return True
            if target is not None and id(_callback_of(part)) in beside and id(target) in self.new:
                return id(target) not in self.reachable((entry,))
        return False

    def reachable(self, start: Sequence[object]) -> set[int]:
        """Return the ``id()`` of each new object that these lead to, perhaps including these."""
        reached: set[int] = set()
        for level in inspection.walk(
            filter(self._is_new, gc.get_referents(*start)), self._is_new, _MAX_REACHED
        ):
            self.check_time()
            reached |= level.keys()
        return reached

    def _is_new(self, obj: object) -> bool:
        return id(obj) in self.new and type(obj) is not ModuleType


def search(  # noqa: PLR0913 - the evidence, one by one
    sought: SearchTarget,
    came: Sequence[object],
    growing: Sequence[GrowingContainer],
    new: Collection[int],
    ignore: Collection[int] = (),
    *,
    deadline: float = inf,
) -> Holders:
    """Find the owners of what is retained, while nothing is frozen; after `deadline`, none.

    `came` are tracked objects that were created in these iterations and still exist; `growing` is
    from `Census.grown`. `new` has the ``id()`` of each object created since the measurement began:
    older objects that lead to it own it. `ignore` has those of objects that cannot be owners, such
    as the plugin's own.
    """
    own, builtin, last = _group_by_type(sought, came)
    unfit = frozenset(id(one.holder) for one in growing if not _gain_may_fit(sought, one))
    sought = replace(sought, unfit=unfit)
    # Lists that are made here refer to the survivors too, and must not count as owners.
    groups = (*own, (), *builtin, *last)
    ours = {*ignore, *map(id, (came, own, builtin, last, groups)), *map(id, groups)}
    reason, listed, most = "", Holders(()), _MIN_ADDED_SHARE / LEAST
    of_search = frozenset(map(id, came))
    # Builtin types come last, because objects of any kind are made of them.
    for survivors in groups:
        try:
            holders = find_owners(sought, growing, survivors, new, ours, deadline=deadline)
            share = _share_held(sought, holders, of_search, growing, deadline)
        except TimeoutError:
            reason = OutOfTime("the search ran out of time")
            break
        if any(survivors is some for some in last) and not holders.objects:
            continue
        if share < 1.0:
            # It may only grow beside what holds the rest.
            listed, most = (holders, share) if share > most else (listed, most)
            reason = reason or _NONE_FITS
            continue
        if holders.owners and (
            sought.identities is None or not _is_list_of_library(holders.owners[0])
        ):
            return holders
        listed = listed if listed.owners else holders
        reason = reason or holders.reason
    held: tuple[Owner, ...] = ()
    if sought.in_python or sought.identities is not None:
        held = tuple(_held_by_interpreter(sought, came, growing, new))
    # A callback of `atexit` keeps what a library only lists.
    if listed.owners and all(owner.root_kind != "exits" for owner in held):
        return listed
    return Holders(held, reason)


def _share_held(
    sought: SearchTarget,
    holders: Holders,
    new: Collection[int],
    growing: Sequence[GrowingContainer],
    deadline: float,
) -> float:
    """Return the share of what must be held that the owners hold of what these iterations made.

    `new` are the tracked objects among that, by ``id()``.
    """
    owners = holders.objects if holders.joint else holders.objects[:1]
    grown = [one for one in growing if any(one.holder is owner for owner in owners)]
    # The size of a value was compared already.
    if not (sought.least and owners and new) or any(one.is_value for one in grown):
        return 1.0

    def is_new(part: object) -> bool:
        return id(part) in new or not gc.is_tracked(part)

    entries = [one for one in gc.get_referents(*owners) if id(one) in new]
    for container in grown:
        # The key of a list's entry is only its index.
        has_keys = inspection.container_kind(container.holder) in (dict, Context)
        for key, value in inspection.last_entries(container.holder, container.gained):
            entries += filter(is_new, (key, value) if has_keys else (value,))
    held = 0
    for level in inspection.walk(entries, is_new, _MAX_REACHED):
        # What a library holds cannot be counted: an array of objects shows none of them.
        if held >= sought.least or any(
            map(inspection.is_of_extension, set(map(type, level.values())))
        ):
            return 1.0
        if clock.monotonic() > deadline:
            raise TimeoutError
        held += sum(map(_MEASURES[sought.held_as], level.values()))
    return held / sought.least


_MEASURES: Final[Mapping[str, Callable[[object], int]]] = {
    "objects": gc.is_tracked,
    "blocks": lambda _part: 1,
    "bytes": inspection.size_of,
}


# What the interpreter has of `atexit`.
_CALLBACKS: Final = "callbacks"


def _is_list_of_library(owner: Owner) -> bool:
    """Return whether the standard library holds handles, and may only list what a program keeps."""
    return owner.name.partition(".")[0] in sys.stdlib_module_names or owner.root_kind == "running"


def _held_by_interpreter(
    sought: SearchTarget,
    came: Sequence[object],
    growing: Sequence[GrowingContainer],
    new: Collection[int],
) -> Iterator[Owner]:
    """Yield what C holds more of: `atexit` callbacks, context variables, handlers over others."""
    counts = {("atexit", _CALLBACKS): (sought.exits, "callback of atexit.register()")}
    search = _Search(frozenset(new), frozenset(), {}, set())
    for handler in map(signal.getsignal, signal.valid_signals()):
        if id(handler) in search.new:
            reached = search.reachable((handler,))
            chained = sum(type(one) is type(handler) and id(one) in reached for one in came)
            counts[kept_by_interpreter(handler), UNNAMED] = chained, "earlier handler"
    for container in growing:
        if type(container.holder) is Context and (name := kept_by_interpreter(container.holder)):
            counts[name, "variables"] = container.gained, "variable"
    for (name, via), (count, what) in counts.items():
        if count >= max(2.0, LEAST * sought.iterations * min(1.0, sought.rate or 1.0)):
            step = Step(name, via, suspect=True)
            kind: RootKind = "exits" if via == _CALLBACKS else "interpreter"
            yield Owner(name, name, (step,), f"{count} × {what}", count / sought.iterations, kind)


def _group_by_type(
    sought: SearchTarget, came: Sequence[object]
) -> tuple[list[list[object]], list[list[object]], list[list[object]]]:
    """Group what may be retained by type: not builtin, builtin, and types of little evidence."""
    by_kind: dict[str, list[object]] = defaultdict(list)
    # Of these, and of builtin ones whose rate is unknown, only a chain can consist: each refers to
    # the one before.
    links = (FunctionType, MethodType)
    for obj in came:
        fits = type(obj) not in AUXILIARY_TYPES or (type(obj) in links and sought.in_python)
        if fits and not is_ours(obj) and sought.kind in (0, id(type(obj))):
            by_kind[f"{inspection.module_of_type(type(obj))}.{kind_of(obj)}"].append(obj)
    wanted = sought.iterations * (sought.rate or 1.0)
    ranked: list[tuple[float, float, list[object]]] = []
    for some in by_kind.values():
        count = len(some)
        if count < max(2.0, LEAST * wanted) or LEAST * count > sought.remaining(some):
            continue
        if sought.identities is not None:
            fits = count <= MOST * wanted + 1 and sought.fits([(one,) for one in some])
        else:
            fits = sought.in_python or inspection.is_of_extension(type(some[0]))
        if fits:
            # The smallest objects that are large enough for the retained bytes come first; others
            # may be as frequent.
            size = inspection.own_size(some[-1], some[-2]) if sought.size else 0
            is_enough = sought.size and count * size >= LEAST * sought.size * sought.iterations
            ranked.append((size if is_enough else inf, abs(count - wanted), some))
    ranked.sort(key=lambda kind: kind[:2])
    own = [
        some for *_rank, some in ranked if inspection.module_of_type(type(some[0])) != "builtins"
    ]
    builtin = [
        some for *_rank, some in ranked if inspection.module_of_type(type(some[0])) == "builtins"
    ]
    # Without a rate, builtin types are weak evidence: the plugin itself creates tuples and lists.
    last = [
        some for some in builtin if type(some[0]) in links or (sought.in_python and not sought.rate)
    ]
    return own, [some for some in builtin if sought.rate and type(some[0]) not in links], last


def _gain_may_fit(sought: SearchTarget, container: GrowingContainer) -> bool:
    """Return whether the entries that a container gained may be, or contain, what is retained."""
    if sought.identities is not None:
        return not container.is_value and sought.fits(
            inspection.last_entries(container.holder, container.gained)
        )
    if sought.in_python or sought.size is None:
        return True
    # Memory that C code allocated belongs to large enough entries, or to objects of an extension
    # type.
    if bytes_gained(container) >= LEAST * sought.size * sought.iterations:
        return True
    return not container.is_value and any(
        inspection.is_of_extension(type(part))
        for pair in inspection.last_entries(container.holder, _NEWEST_ENTRIES)
        for part in pair
    )


def find_owners(  # noqa: PLR0913 - the evidence, one by one
    sought: SearchTarget,
    growing: Sequence[GrowingContainer],
    survivors: Sequence[object] = (),
    new: Collection[int] = (),
    ignore: Collection[int] = (),
    *,
    deadline: float = inf,
) -> Holders:
    """Find the owners of `survivors`, which are all new objects of one kind.

    If there are no survivors, find the owners of what grows as expected.
    """
    counted = frozenset(map(id, survivors))
    skipped = {*ignore, id(growing), id(survivors)}
    grown = {id(one.holder): one for one in growing if not one.is_value}
    within = _Search(counted | frozenset(new), counted, grown, skipped, deadline)
    passed = skipped | sought.unfit
    candidates = [
        one for one in growing if id(one.holder) not in passed and not _newest_follows(one, within)
    ]
    if survivors:
        return _find_owners_of_survivors(survivors, candidates, sought, within)
    fit = fitting(candidates, sought.iterations, sought.rate, sought.size)[:_MAX_OWNERS]
    paths = find_paths([one.holder for one in fit], skipped, new=within.new)
    found = [
        (_describe_growing(container, path, sought.iterations), container.holder, is_runners(path))
        for container, path in zip(fit, paths, strict=True)
        if path
    ]
    if not found:
        for one, path in zip(fit, paths, strict=True):
            if not _is_held_by_us(one.holder):
                why = f"a {describe_holder(one.holder)} grows, and {_say_lost(path)}"
                return Holders((), why)
        unfit = [one for one in growing if id(one.holder) in sought.unfit - skipped]
        grew = fitting(unfit, sought.iterations, sought.rate, sought.size)[:_MAX_OWNERS]
        # What this package fills has no path.
        others = find_paths([one.holder for one in grew], skipped, new=within.new)
        is_said = any(path and not is_runners(path) for path in others)
        return Holders((), _NONE_FITS if is_said else _NOTHING_GREW)
    if sought.identities is not None:
        # All of them stand for the handles.
        found.sort(key=lambda one: _is_list_of_library(one[0]))
    with_path = [one for one, path in zip(fit, paths, strict=True) if path and not is_runners(path)]
    return _without_test_runner(
        found, joint=are_shares(with_path, sought.iterations, sought.rate, sought.size)
    )


def _say_lost(path: Sequence[object] | None) -> str:
    """Say why an object has no path."""
    if path is None:
        return "no path to it was found within the limits of the search"
    return "it is held outside Python objects (C)"


def _is_held_by_us(obj: object) -> bool:
    """Return whether an object without a root is this package's, which fills it in the search."""
    level, seen = [obj], {id(obj)}
    for _ in range(_MAX_LEVELS):
        referrers = [
            referrer
            for referrer in gc.get_referrers(*level)
            if type(referrer) is not GrowingContainer and referrer is not level
        ]
        if any(map(is_ours, referrers)):
            return True
        level = [other for other in referrers if id(other) not in seen][:SAMPLE_SIZE]
        seen.update(map(id, level))
    return False


def _find_owners_of_survivors(
    survivors: Sequence[object],
    candidates: Sequence[GrowingContainer],
    sought: SearchTarget,
    search: _Search,
) -> Holders:
    skipped, iterations, count = search.skipped, sought.iterations, sought.remaining(survivors)
    holds = [hold for one in candidates if not one.is_value for hold in search.hold_of(one.holder)]
    if not _select_largest(holds, count):
        holds = list(search.older_holders())
    largest = sorted(holds, key=lambda one: -len(one.reached))[:_MAX_OWNERS]
    if not _select_largest(largest, count):
        return _report_unheld(survivors, search)
    found = []
    paths = find_paths([hold.holder for hold in largest], skipped, new=search.new)
    # An object without a path from a root is temporary, or held by C.
    path_to = {id(hold): path for hold, path in zip(largest, paths, strict=True) if path}
    for hold in _select_largest([hold for hold in largest if id(hold) in path_to], count):
        path = path_to[id(hold)]
        some = [one for one in survivors if id(one) in hold.reached][-SAMPLE_SIZE:]
        container = search.growing.get(id(hold.holder))
        gained = container.gained / iterations if container else 0.0
        text = inspection.describe_many(some, len(hold.reached))
        entries = _newest_payloads(container) if container else some
        if container and not (type(entries[0]) is type(survivors[0]) or accompanies(entries[0])):
            # The entries contain the survivors, such as errors with tracebacks.
            text = inspection.describe_many(entries, container.gained)
        owner = describe_owner((*path, hold.entry), hold.holder, text, gained)
        found.append((owner, hold.holder, is_runners(path)))
    if not found:
        first = largest[0].holder
        return Holders(
            (), f"they are held by a {describe_holder(first)}, and {_say_lost(paths[0])}"
        )
    return _without_test_runner(found, joint=True)


def _select_largest(holds: list[_Hold], count: int) -> list[_Hold]:
    """Select the largest holds that together hold enough survivors; none if all are not enough."""
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


def _report_unheld(survivors: Sequence[object], search: _Search) -> Holders:
    """Report the path from a root to survivors that no older object holds, or why there is none."""
    inner = search.reachable(survivors)
    heads = [one for one in survivors if id(one) not in inner] or list(survivors[:1])
    # Not the newest: it may only be in use. No variable refers to it, because references are
    # counted below.
    at = len(heads) // 2
    (path,) = find_paths(heads[at : at + 1], {*search.skipped, id(heads)})
    if path:
        return Holders((describe_owner(path, path[-2:][0], inspection.type_name(heads[at])),))
    # C code may hold a new object that refers to the survivors, such as the function whose closure
    # contains them.
    if lost := references_outside(
        with_referrers(heads[-SAMPLE_SIZE:], search.new - search.skipped)
    ):
        return Holders((), f"{say_references(lost)} held outside Python objects (C)")
    return Holders((), "their owner was not found")


def with_referrers(
    start: list[object], new: frozenset[int] | None = None, ignore: Collection[int] = ()
) -> list[object]:
    """Return these objects, and those (only `new` ones, if given) that lead to them."""
    found = {id(one): one for one in start}
    level = start
    for _ in range(_MAX_LEVELS):
        own = {*ignore, id(found), id(start), id(level)}
        others = (
            one for one in gc.get_referrers(*level) if id(one) not in found and id(one) not in own
        )
        # New frames are left out, because the interpreter holds them.
        wanted = (
            one for one in others if new is None or (id(one) in new and type(one) is not FrameType)
        )
        level = list(islice(wanted, SAMPLE_SIZE))
        found.update((id(one), one) for one in level)
        if not level:
            break
    return list(found.values())


def references_outside(survivors: Sequence[object]) -> int:
    """Count the references to these objects that no Python object accounts for."""
    marker = [object()]
    # `getrefcount` also counts the references that its own call adds. The 1 is the reference in the
    # list.
    asking = sys.getrefcount(marker[0]) - 1
    missing = 0
    for at in range(len(survivors)):
        place = id(survivors[at])
        holders = gc.get_referrers(survivors[at])
        known = sum(
            1 for holder in holders for part in gc.get_referents(holder) if id(part) == place
        )
        del holders
        missing += max(0, sys.getrefcount(survivors[at]) - asking - known)
    return missing


def say_references(count: int) -> str:
    """Return the beginning of a sentence: ``"2 references are"``."""
    return "1 reference is" if count == 1 else f"{count} references are"


def _describe_growing(
    container: GrowingContainer, path: Sequence[object], iterations: int
) -> Owner:
    if container.is_value:
        entry = container.value
        holds = f"one {inspection.type_name(entry)} of {inspection.amount(entry):,} B that grows"
    else:
        entries = _newest_payloads(container)
        entry = entries[0]
        holds = inspection.describe_many(entries, container.gained)
        if inspection.type_name(entry) == inspection.LRU_ENTRY_TYPE:
            holds = f"{container.gained} results"
    return describe_owner((*path, entry), container.holder, holds, container.gained / iterations)


def _newest_payloads(container: GrowingContainer) -> list[object]:
    """Return what new entries retain: the value, or the key of a dict that is used as a set."""
    pairs = inspection.last_entries(container.holder, min(container.gained, SAMPLE_SIZE))
    trivial = _TRIVIAL_TYPES if inspection.container_kind(container.holder) is dict else ()
    return [key if any(type(value) is kind for kind in trivial) else value for key, value in pairs]


def _newest_follows(container: GrowingContainer, search: _Search) -> bool:
    """Return whether the newest value of a container keeps nothing alive."""
    if container.is_value or inspection.container_kind(container.holder) is None:
        return False
    return any(
        search.follows(pair[1], set(map(id, pair)))
        for pair in inspection.last_entries(container.holder, 1)
    )


def _without_test_runner(found: Sequence[tuple[Owner, object, bool]], *, joint: bool) -> Holders:
    """Build the result without the test runner's owners: it always holds much that a test grows."""
    outside = [(owner, holder) for owner, holder, is_runners in found if not is_runners]
    if not outside:
        return Holders(
            (),
            f"the only objects that grow at this rate belong to the test runner ({found[0][0].root})",
        )
    # Running frames come last, because they hold many objects only for a while.
    outside.sort(key=lambda pair: pair[0].root_kind == "frame")
    owners, objects = zip(*outside, strict=True)
    return Holders(owners, objects=objects, joint=joint and len(owners) > 1)
