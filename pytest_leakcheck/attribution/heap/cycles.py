"""Name the types in reference cycles that only the garbage collector frees."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType
from typing import Any, Final

# Types that objects of any kind are made of: a cycle is named by its other types.
_GENERIC_TYPES: Final = (dict, list, tuple, set, frozenset, FunctionType, BuiltinFunctionType, CodeType, CellType)
# Most garbage objects that are searched: out of a hundred thousand, the first few thousand show the shape of the
# cycles.
_MAX_CYCLE_OBJECTS: Final = 5_000


def save_garbage(collect: Callable[[], object]) -> list[Any]:
    """Run a collection and return the garbage instead of freeing it.

    The caller drops the objects and collects again. ``gc.DEBUG_SAVEALL`` keeps unreachable objects in ``gc.garbage``;
    the debug flags and that list are restored.

    Args:
        collect: Runs the collection.
    """
    flags, before = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        collect()
        return gc.garbage[before:]
    finally:
        gc.set_debug(flags)
        del gc.garbage[before:]


def name_cycles(garbage: Sequence[Any], count: float) -> tuple[str, ...]:
    """Return the types of the cycle that occurs about as often as expected.

    Args:
        garbage: The objects that were left to the collector.
        count: The expected number of cycles, roughly: each may hold one descriptor.

    Returns:
        Type names in the order of the cycle, beginning with the alphabetically first; empty where there is no cycle.
    """
    shapes: Counter[tuple[str, ...]] = Counter()
    for cycle in _find_cycles(garbage):
        names = [type(one).__name__ for one in cycle if type(one) not in _GENERIC_TYPES]
        if names:
            first = names.index(min(names))
            shapes[tuple(names[first:] + names[:first])] += 1
    if not shapes:
        return ()
    return min(shapes, key=lambda shape: (abs(shapes[shape] - count), len(shape), shape))


def _find_cycles(garbage: Sequence[Any]) -> list[list[Any]]:
    """Return one shortest cycle for each strongly connected component."""
    known = {id(one): one for one in garbage[:_MAX_CYCLE_OBJECTS]}
    edges = {
        number: [id(other) for other in gc.get_referents(one) if id(other) in known] for number, one in known.items()
    }
    back: dict[int, list[int]] = {number: [] for number in known}
    for number, others in edges.items():
        for other in others:
            back[other].append(number)
    found: list[list[Any]] = []
    done: set[int] = set()
    for start in known:
        if start in done:
            continue
        cycle = _find_shortest_cycle(start, edges)
        if cycle is None:
            continue
        # One cycle represents its component: all objects that can be reached from here and lead back here.
        done |= _reachable(start, edges) & _reachable(start, back)
        found.append([known[number] for number in cycle])
    return found


def _find_shortest_cycle(start: int, edges: dict[int, list[int]]) -> list[int] | None:
    """Return the shortest cycle through an object; None where it is in no cycle."""
    came_from: dict[int, int] = {}
    frontier = [start]
    while frontier:
        following: list[int] = []
        for number in frontier:
            for other in edges[number]:
                if other == start:
                    way = [number]
                    while way[-1] != start:
                        way.append(came_from[way[-1]])
                    return way[::-1]
                if other not in came_from:
                    came_from[other] = number
                    following.append(other)
        frontier = following
    return None


def _reachable(start: int, edges: dict[int, list[int]]) -> set[int]:
    seen, frontier = {start}, [start]
    while frontier:
        number = frontier.pop()
        for other in edges[number]:
            if other not in seen:
                seen.add(other)
                frontier.append(other)
    return seen
