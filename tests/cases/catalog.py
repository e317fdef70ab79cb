"""All cases, by name and by arm."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cases import (
    aio,
    async_clients,
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
    objects, hooks, caches, aio, async_clients, blocks, native,
    warming, innocent, churn, transient,
)  # fmt: skip


def _name_owners(case: Case, module: str) -> Case:
    return replace(case, owner=tuple(f"{module}{one}" if one.startswith(".") else one for one in case.owner))


_CASES: Final = [_name_owners(case, family.__name__) for family in _FAMILIES for case in family.CASES]
# Cases that change the process for everyone come last: whatever they did not undo then colours no other.
CATALOG: Final[dict[str, Case]] = {case.name: case for case in sorted(_CASES, key=lambda case: case.process_wide)}

ARMS: Final[dict[str, tuple[Case, Arm]]] = {
    name: (case, arm) for case in CATALOG.values() for name, arm in case.arms.items()
}
