"""Find a reference path from a root (module, class, fixture, thread, running frame) to an object, by its referrers."""

from __future__ import annotations

import gc
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from types import FrameType, FunctionType, ModuleType
from typing import Final

from pytest_leakcheck.attribution.heap.reference_text import (
    is_class,
    is_fixture,
    is_plugin_object,
    kept_by_interpreter,
    module_name,
    running_frames,
)
from pytest_leakcheck.attribution.object_inspection import LRU, module_of_type

# The most levels of referrers, and per level the most objects whose referrers are searched, and of these referrers.
_MAX_LEVELS: Final = 14
_MAX_OBJECTS_PER_LEVEL: Final = 16
_MAX_REFERRERS: Final = 20_000
# Ranks of roots, best first: a module or a class; a fixture or a thread; an object of a pytest plugin; a running frame.
_RANK_LASTING, _RANK_THREAD, _RANK_PLUGIN, _RANK_FRAME, _RANK_TEST_RUNNER = range(5)
_OWN_PACKAGE: Final = "pytest_leakcheck"
# Top-level packages of the test runner.
_RUNNERS: Final = ("_pytest", "pluggy", "pytest")


@dataclass(slots=True, eq=False)
class _Search:
    """The search for a root of one object; `next_of` has the next object on the path to the target, by ``id()``."""

    target: object
    next_of: dict[int, object] = field(default_factory=dict)
    frontier: list[object] = field(default_factory=list)
    found: object = None
    rank: int = _RANK_TEST_RUNNER + 1

    def path(self) -> tuple[object, ...]:
        """Return the path from the root to the target."""
        path = [self.found]
        while path[-1] is not self.target:
            path.append(self.next_of[id(path[-1])])
        return tuple(path)

    def meet(self, one: object, rank: int | None) -> None:
        """Record an object that leads to the target; with rank None it is no root, and its referrers are searched."""
        if rank is None:
            self.frontier.append(one)
        elif rank < self.rank:
            self.found, self.rank = one, rank


def find_paths(targets: Sequence[object], ignore: Collection[int] = ()) -> tuple[tuple[object, ...], ...]:
    """Return a path from a root to each object, without those in `ignore`, by ``id()``; empty where none is found.

    Call it while nothing is frozen. All searches run together, because each level scans all tracked objects.
    """
    running = {id(frame): frame for frame in running_frames()}
    searches = [_Search(target) for target in targets]
    for search in searches:
        search.meet(search.target, _root_rank(search.target, running))
    skipped = {*ignore, id(targets)}
    for _ in range(_MAX_LEVELS):
        open_ones = [search for search in searches if search.rank > _RANK_THREAD and search.frontier]
        if not open_ones:
            break
        _search_next_level(open_ones, skipped, running)
    for search in searches:
        if search.rank > _RANK_THREAD:
            _search_frames(search, running.values(), skipped)
    # Its own frame is among them: this function would be garbage that refers to what is searched for.
    running.clear()
    return tuple(search.path() if search.rank <= _RANK_TEST_RUNNER else () for search in searches)


def _search_next_level(searches: list[_Search], skipped: set[int], running: dict[int, FrameType]) -> None:
    """Search the referrers of the current level, for all searches at once."""
    frontiers = [list(islice(_alternate_kinds(search.frontier), _MAX_OBJECTS_PER_LEVEL)) for search in searches]
    wanted = {id(one): one for frontier in frontiers for one in frontier}
    asked = [{id(one) for one in frontier} for frontier in frontiers]
    for search in searches:
        search.frontier = []
    # These structures of the search refer to the objects as well, and must not count as referrers.
    own = {id(wanted), *map(id, frontiers), *(id(search.next_of) for search in searches)}
    for referrer in gc.get_referrers(*wanted.values())[:_MAX_REFERRERS]:
        if id(referrer) in own or id(referrer) in skipped or is_ours(referrer):
            continue
        if type(referrer) is ModuleType:
            # The dict of a module is a root already, and reading its other referents is dangerous (see `owner_search`).
            continue
        rank = _root_rank(referrer, running)
        held = wanted.keys() & map(id, gc.get_referents(referrer))
        for search, mine in zip(searches, asked, strict=True):
            places = held & mine
            if places and id(referrer) not in search.next_of and referrer is not search.target:
                search.next_of[id(referrer)] = wanted[min(places)]
                search.meet(referrer, rank)


def _alternate_kinds(some: Sequence[object]) -> Iterator[object]:
    """Yield the objects with alternating kinds, so that hundreds of one kind do not hide the one leading to a root."""
    # The kind of a dict is its first key if that is a str, because hashing another key could run user code.
    by_kind: dict[object, list[object]] = defaultdict(list)
    for one in some:
        first = next(iter(one), None) if type(one) is dict else None
        by_kind[first if type(first) is str else type(one)].append(one)
    for level in zip_longest(*by_kind.values()):
        yield from (one for one in level if one is not None)


def _root_rank(one: object, running: dict[int, FrameType]) -> int | None:
    """Return the rank of an object as a root; None where it is not a root."""
    if module := module_name(one) or (is_class(one) and (module_of_type(one) or "builtins")):
        return _RANK_TEST_RUNNER if _is_runner(module) else _RANK_LASTING
    if kept_by_interpreter(one):
        return _RANK_LASTING
    if is_fixture(one):
        return _RANK_THREAD
    if issubclass(type(one), threading.Thread):
        return _RANK_THREAD if any(one is thread for thread in threading.enumerate()) else None
    if id(one) in running:
        return _RANK_FRAME
    return _RANK_PLUGIN if is_plugin_object(one) else None


def is_runners(path: Sequence[object]) -> bool:
    """Return whether a path leads through the test runner; the test has only an indirect effect on what that holds."""
    root = path[0]
    if _root_rank(root, {}) == _RANK_TEST_RUNNER or (type(root) is FrameType and _is_runner(_module_of_frame(root))):
        return True
    return any(_is_runner(module_of_type(type(one))) and not is_fixture(one) for one in path)


def _is_runner(module: str) -> bool:
    return module.partition(".")[0] in _RUNNERS


def is_ours(one: object) -> bool:
    """Return whether an object belongs to this package: an instance, a module, a class, a function, its cache, a frame."""
    if type(one) is FrameType:
        module = _module_of_frame(one)
    elif is_class(one):
        module = module_of_type(one)
    elif type(one) in (FunctionType, LRU):
        # A plain function and its cache run no code for this.
        module = str(one.__module__)
    else:
        module = module_name(one) or module_of_type(type(one))
    return module.partition(".")[0] == _OWN_PACKAGE


def _search_frames(search: _Search, frames: Collection[FrameType], skipped: set[int]) -> None:
    """Search the locals of running frames: the collector does not report them."""
    # The locals of a module's frame are the globals of that module, which are a root already.
    functions = [one for one in frames if one.f_code.co_name != "<module>" and id(one) not in skipped]
    pairs = [(frame, one) for frame in functions if not is_ours(frame) for one in list(frame.f_locals.values())]
    held = [pair for pair in pairs if pair[1] is search.target or id(pair[1]) in search.next_of]
    # A frame that holds the target itself comes before one that holds it through another object.
    for frame, one in sorted(held, key=lambda pair: pair[1] is not search.target):
        rank = _RANK_TEST_RUNNER if _is_runner(_module_of_frame(frame)) else _RANK_FRAME
        if rank < search.rank:
            search.next_of[id(frame)] = one
            search.meet(frame, rank)


def _module_of_frame(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))
