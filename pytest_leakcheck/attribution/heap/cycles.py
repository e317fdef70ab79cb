"""What only the cyclic collector frees: the types in the cycles, told from what it finds to be garbage."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType
from typing import Any, Final

# What other things are made of: a cycle is named by the rest of it.
_PLAIN: Final = (dict, list, tuple, set, frozenset, FunctionType, BuiltinFunctionType, CodeType, CellType)
# Of a hundred thousand objects the first few thousand show the shape.
_MOST: Final = 5_000


def save_garbage(collect: Callable[[], object]) -> list[Any]:
    """Collect, and give back what was garbage instead of freeing it. The caller drops it and collects again.

    ``gc.DEBUG_SAVEALL`` keeps what is unreachable in ``gc.garbage``; both are put back as they were.
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
    """The types of the cycle that comes closest to so many per iteration.

    Args:
        garbage: What one iteration left to the collector.
        count: How many there should be, roughly: one descriptor may hang from each.

    Returns:
        Type names in the order of the cycle, the one that comes first in the alphabet first; empty where there is none.
    """
    shapes: Counter[tuple[str, ...]] = Counter()
    for cycle in _cycles(garbage):
        names = [type(one).__name__ for one in cycle if type(one) not in _PLAIN]
        if names:
            first = names.index(min(names))
            shapes[tuple(names[first:] + names[:first])] += 1
    if not shapes:
        return ()
    return min(shapes, key=lambda shape: (abs(shapes[shape] - count), len(shape), shape))


def _cycles(garbage: Sequence[Any]) -> list[list[Any]]:
    """For each strongly connected component a shortest cycle through one of its objects."""
    known = {id(one): one for one in garbage[:_MOST]}
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
        came_from = _shortest_way_round(start, edges)
        if came_from is None:
            continue
        # One cycle stands for all that is reached from here and leads back here.
        done |= _reached(start, edges) & _reached(start, back)
        found.append([known[number] for number in came_from])
    return found


def _shortest_way_round(start: int, edges: dict[int, list[int]]) -> list[int] | None:
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


def _reached(start: int, edges: dict[int, list[int]]) -> set[int]:
    seen, frontier = {start}, [start]
    while frontier:
        number = frontier.pop()
        for other in edges[number]:
            if other not in seen:
                seen.add(other)
                frontier.append(other)
    return seen
