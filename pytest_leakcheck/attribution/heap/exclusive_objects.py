"""Count the objects that exist only because a cache refers to them."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Mapping, Sequence


def count_exclusive(holders: Sequence[object]) -> int:
    """Count the tracked objects created since `gc.freeze` that would be freed if these objects referred to nothing.

    The holders are the objects of a cache that refer to its entries. An object is freed when the last reference to it
    is gone, and then refers to nothing either. So the number is never too large. If a list refers to an object as well,
    neither the object nor what it refers to counts; nor does an object that is part of a cycle.
    """
    new = frozenset(map(id, gc.get_objects()))
    gone: Counter[int] = Counter()
    level, count = list(holders), 0
    while level:
        parts = [part for part in gc.get_referents(*level) if id(part) in new or not gc.is_tracked(part)]
        gone.update(map(id, parts))
        touched = {id(part): part for part in parts}
        # From here on, only `touched` refers to them.
        del parts
        level = [touched[at] for at, references in _count_references(touched).items() if references == gone[at]]
        count += sum(id(part) in new for part in level)
    return count


def _count_references(parts: Mapping[int, object]) -> dict[int, int]:
    """Return the number of references to each part, without those of the mapping and of this function."""
    # Each is counted in the same way as an object to which nothing else refers.
    own = _count_all({0: []})[0]
    return {at: count - own for at, count in _count_all(parts).items()}


def _count_all(parts: Mapping[int, object]) -> dict[int, int]:
    return {at: sys.getrefcount(part) for at, part in parts.items()}
