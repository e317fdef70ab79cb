"""The way from a root to an object: backward from it, level by level, to a module, a class, a thread, or a frame."""

from __future__ import annotations

import gc
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from types import FrameType, ModuleType
from typing import Final

from pytest_leakcheck.attribution.heap.reference_text import is_class, is_fixture, module_name, running_frames
from pytest_leakcheck.attribution.object_inspection import module_of_type

# So many levels up, and of each level so many objects.
_LEVELS: Final = 14
_WIDTH: Final = 16
# What many refer to, and more of them than can be looked at.
_MANY: Final = 20_000
# A module or a class is what a person looks for; what only runs, or is the test runner's own, is a last resort.
_LASTING, _THREAD, _RUNNING, _RUNNER = range(4)
_OURS: Final = "pytest_leakcheck"
_NONE: Final = object()
RUNNERS: Final = ("_pytest", "pluggy", "pytest")


@dataclass(slots=True, eq=False)
class _Search:
    """The search from one object.

    Attributes:
        target: Where it began.
        next_of: What each object refers to on the way, by the identity of the former.
        frontier: What is to be looked at next.
        found: The best root so far, and its rank.
    """

    target: object
    next_of: dict[int, object] = field(default_factory=dict)
    frontier: list[object] = field(default_factory=list)
    found: object = None
    rank: int = _RUNNER + 1

    def path(self) -> tuple[object, ...]:
        path = [self.found]
        while path[-1] is not self.target:
            path.append(self.next_of[id(path[-1])])
        return tuple(path)

    def meet(self, one: object, rank: int | None) -> None:
        """One that refers to what is looked for: a root of that rank, or a step on the way to one."""
        if rank is None:
            self.frontier.append(one)
        elif rank < self.rank:
            self.found, self.rank = one, rank


def find_paths(targets: Sequence[object], ignore: Collection[int] = ()) -> tuple[tuple[object, ...], ...]:
    """For each object the shortest path from a root that lasts, or from a running frame; empty where there is none.

    All of them are sought side by side: each level costs one scan of what the collector lists, and nothing may be frozen.

    Args:
        targets: Where the paths are to end.
        ignore: Identities of what no path may lead through.
    """
    running = {id(frame): frame for frame in running_frames()}
    searches = [_begin(target, running) for target in targets]
    skipped = {*ignore, id(targets)}
    for _ in range(_LEVELS):
        open_ones = [search for search in searches if search.rank > _THREAD and search.frontier]
        if not open_ones:
            break
        _climb(open_ones, skipped, running)
    for search in searches:
        if search.rank > _THREAD:
            _look_into_frames(search, running.values(), skipped)
    return tuple(search.path() if search.rank <= _RUNNER else () for search in searches)


def _begin(target: object, running: dict[int, FrameType]) -> _Search:
    search = _Search(target)
    search.meet(target, _rank(target, running))
    return search


def _climb(searches: list[_Search], skipped: set[int], running: dict[int, FrameType]) -> None:
    """One level up in each of them."""
    frontiers = [list(islice(_diverse(search.frontier), _WIDTH)) for search in searches]
    wanted = {id(one): one for frontier in frontiers for one in frontier}
    asked = [{id(one) for one in frontier} for frontier in frontiers]
    for search in searches:
        search.frontier = []
    # The search itself refers to all of them.
    own = {id(wanted), *map(id, frontiers), *(id(search.next_of) for search in searches)}
    for referrer in gc.get_referrers(*wanted.values())[:_MANY]:
        if id(referrer) in own or id(referrer) in skipped or is_ours(referrer):
            continue
        if type(referrer) is ModuleType:
            # Its dict is a root already, and to ask it for the rest is dangerous: see `all_objects`.
            continue
        rank = _rank(referrer, running)
        held = wanted.keys() & map(id, gc.get_referents(referrer))
        for search, mine in zip(searches, asked, strict=True):
            places = held & mine
            if places and id(referrer) not in search.next_of and referrer is not search.target:
                search.next_of[id(referrer)] = wanted[min(places)]
                search.meet(referrer, rank)


def _diverse(some: Sequence[object]) -> Iterator[object]:
    """By turns one of each kind: where hundreds of one kind refer to a thing, the way out is through one of another."""
    by_kind: dict[object, list[object]] = defaultdict(list)
    for one in some:
        by_kind[_kind(one)].append(one)
    for level in zip_longest(*by_kind.values(), fillvalue=_NONE):
        yield from (one for one in level if one is not _NONE)


def _kind(one: object) -> object:
    """Of a dict that may be an instance's, its first attribute; the hash of any other key would be the user's code."""
    if type(one) is not dict:
        return type(one)
    first = next(iter(one), None)
    return first if type(first) is str else dict


def _rank(one: object, running: dict[int, FrameType]) -> int | None:
    """How good a root it is; None where it is none."""
    if issubclass(type(one), ModuleType) or type(one) is dict:
        name = module_name(one)
        return (_RUNNER if name.partition(".")[0] in RUNNERS else _LASTING) if name else None
    if is_class(one):
        return _RUNNER if module_of_type(one).partition(".")[0] in RUNNERS else _LASTING
    if is_fixture(one):
        return _THREAD
    if issubclass(type(one), threading.Thread):
        return _THREAD if any(one is thread for thread in threading.enumerate()) else None
    return _RUNNING if id(one) in running else None


def is_runners(path: Sequence[object]) -> bool:
    """Whether a path leads through the test runner: what that holds is of the test's own making only at second hand."""
    root = path[0]
    if _rank(root, {}) == _RUNNER or (type(root) is FrameType and _module_of(root) in RUNNERS):
        return True
    return any(module_of_type(type(one)).partition(".")[0] in RUNNERS and not is_fixture(one) for one in path)


def is_ours(one: object) -> bool:
    """Whether it belongs to the harness: its frames, its objects."""
    if type(one) is FrameType:
        return _module_of(one) == _OURS
    return module_of_type(type(one)).partition(".")[0] == _OURS


def _look_into_frames(search: _Search, frames: Collection[FrameType], skipped: set[int]) -> None:
    """The locals of what runs are not listed from Python 3.11 on."""
    held = [pair for pair in _locals(frames) if pair[1] is search.target or id(pair[1]) in search.next_of]
    # What holds the target itself comes before what holds it through something else.
    for frame, one in sorted(held, key=lambda pair: pair[1] is not search.target):
        if id(frame) in skipped or is_ours(frame):
            continue
        rank = _RUNNER if _module_of(frame) in RUNNERS else _RUNNING
        if rank < search.rank:
            search.next_of[id(frame)] = one
            search.meet(frame, rank)


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _locals(frames: Collection[FrameType]) -> Iterator[tuple[FrameType, object]]:
    # The globals of a module that is being run are its locals too, and a root already.
    return (
        (frame, one) for frame in frames if frame.f_code.co_name != "<module>" for one in list(frame.f_locals.values())
    )
