"""Name the types in reference cycles that only the garbage collector frees."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FunctionType
from typing import Any, Final

# Objects of any kind are made of these types, so that the name of a cycle leaves them out.
_GENERIC_TYPES: Final = (dict, list, tuple, set, frozenset, FunctionType, BuiltinFunctionType, CodeType, CellType)
# Maximum number of garbage objects to search.
_MAX_CYCLE_OBJECTS: Final = 5_000


def save_garbage(collect: Callable[[], object]) -> list[Any]:
    """Run a collection and return the garbage, which the caller must drop and collect again to free it."""
    flags, before = gc.get_debug(), len(gc.garbage)
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        collect()
        return gc.garbage[before:]
    finally:
        gc.set_debug(flags)
        del gc.garbage[before:]


def name_cycles(garbage: Sequence[Any], count: float) -> tuple[str, ...]:
    """Return the types of the cycle whose number is closest to the expected one, the alphabetically first type first.

    Empty if there is no cycle, or only of generic types.
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
    """Return one cycle, the shortest through the first object, for each strongly connected component with a cycle."""
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
        before = {} if start in done else _search(start, edges)
        if start in before:
            # One cycle represents its whole component: all objects that `start` leads to and that lead back to `start`.
            done |= before.keys() & _search(start, back).keys()
            cycle = [before[start]]
            while cycle[-1] != start:
                cycle.append(before[cycle[-1]])
            found.append([known[number] for number in reversed(cycle)])
    return found


def _search(start: int, edges: dict[int, list[int]]) -> dict[int, int]:
    """Return the one before each object to which references lead, on a shortest way; with `start` if it is in a cycle."""
    before: dict[int, int] = {}
    reached = [start]
    for number in reached:
        for other in edges[number]:
            if other not in before:
                before[other] = number
                reached.append(other)
    return before
