"""All cases, by name and by arm."""

from __future__ import annotations

from typing import Final

from cases import (
    aio,
    blocks,
    caches,
    churn,
    collected,
    descriptors,
    handed_over,
    hooks,
    innocent,
    leftovers,
    mappings,
    native,
    objects,
    processes,
    resident,
    shared,
    temporary_paths,
    thread_memory,
    threads,
    transient,
    warming,
)
from cases.case import Arm, Case

_FAMILIES: Final = (
    descriptors, collected, threads, processes, handed_over, shared, leftovers, temporary_paths, mappings, thread_memory, resident,
    objects, hooks, caches, aio, blocks, native,
    warming, innocent, churn, transient,
)  # fmt: skip

# Cases that change the process for everyone come last: whatever they did not undo then colours no other.
CATALOG: Final[dict[str, Case]] = {
    case.name: case
    for case in sorted((case for family in _FAMILIES for case in family.CASES), key=lambda case: case.process_wide)
}

ARMS: Final[dict[str, tuple[Case, Arm]]] = {
    name: (case, arm) for case in CATALOG.values() for name, arm in case.arms.items()
}
