"""Count, list and recognize handles: units of a resource that have an identity, unlike bytes."""

from __future__ import annotations

import io
import mmap
import select
import socket
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.attribution.live_handles import live_children, live_tasks, open_files, running_threads
from pytest_leakcheck.attribution.object_inspection import is_c, is_shared, module_of, walk
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.device import Vram
from pytest_leakcheck.probes.folders import Folder

# The parts of an entry that are searched.
_MAX_PARTS: Final = 200
# Deepest level at which a part of a type written in C counts: an attribute of the entry, in a dict.
_MAX_OPAQUE_DEPTH: Final = 3
# Minimum share of the expected handles that the sampled entries must stand for.
_MIN_HANDLE_SHARE: Final = 0.8
# Number of entries to sample; up to twice as many are inspected.
_SAMPLE_SIZE: Final = 24
# Modules whose objects may hold memory but no handles.
_MEMORY_ONLY_MODULES: Final = frozenset({"builtins", "numpy", "pandas", "pyarrow", "torch"})
# Standard library modules with types written in C whose objects keep file descriptors that they do not expose.
_STDLIB_WITH_DESCRIPTORS: Final = frozenset({"sqlite3", "_dbm", "_gdbm"})


@dataclass(frozen=True, slots=True)
class Things:
    """One kind of handle."""

    # A number that changes when a handle appears or disappears; it is cheap.
    count: Callable[[], int]
    # The description of each handle, by identity; another description under the same one means another handle.
    list_now: Callable[[], Mapping[Any, str]]
    # Whether the description is the size of the handle, so that the growth is that of the sum of the sizes.
    sized: bool = False
    # Whether `traced_children` can trace these handles in child processes too.
    in_children: bool = False


def things_of(resource: str, count: Callable[[], int], folder: Folder | None = None) -> Things | None:
    """Return the kind of handle that a resource counts, perhaps in a folder; None if none can be listed here."""
    kind = find_resource(resource).handles
    if kind == "fds":
        return Things(count, open_files, in_children=True)
    if kind == "threads":
        return Things(count, lambda: dict.fromkeys(running_threads(), ""))
    if kind == "children":
        return Things(_hash_children_of_thread, lambda: dict.fromkeys(live_children(), ""))
    if kind == "tasks":
        return Things(count, live_tasks)
    if folder is not None:
        return Things(count, lambda: dict.fromkeys(folder.names(), folder.path))
    return None


def pieces_of(device: Vram) -> Things | None:
    """Return the allocations on the devices as a kind of handle; None if a device does not list them one by one."""
    if device.pieces() is None:
        return None
    return Things(device.read, lambda: {key: str(size) for key, size in (device.pieces() or {}).items()}, sized=True)


def _hash_children_of_thread() -> int:
    """Return a number that changes with the child processes of this thread; walking the process tree takes too long."""
    with Path("/proc/thread-self/children").open("rb", buffering=0) as file:
        return hash(file.read())


def stand_for(entries: Sequence[tuple[object, ...]], identities: Collection[Hashable]) -> bool:
    """Return whether entries (tuples of their parts) of a container stand for most of the handles, judged by a sample.

    An entry stands for a handle if it contains its number or name, or the object itself. An object of a type written in
    C cannot be inspected, so that one such object suffices. The entries may include some that are older.
    """
    sample = entries[:: max(1, len(entries) // _SAMPLE_SIZE)]
    wanted = min(len(sample) * min(1.0, len(identities) / max(1, len(entries))), len(identities))
    # Only numbers and names can be recognized.
    known = frozenset(key for key in identities if isinstance(key, (int, str)))
    found: set[Hashable] = set()
    for entry in sample:
        levels = walk([part for part in entry if not is_shared(part)], lambda part: not is_shared(part), _MAX_PARTS)
        for depth, level in enumerate(levels, start=1):
            for part in level.values():
                # An mmap duplicates the descriptor that it was made from, and does not expose the number of the copy.
                if depth <= _MAX_OPAQUE_DEPTH and (is_opaque_handle(type(part)) or type(part) is mmap.mmap):
                    return True
                found |= handles_of(part, known, by_value=True)
    return len(found) >= _MIN_HANDLE_SHARE * wanted > 0


def handles_of(one: object, identities: Collection[Hashable], *, by_value: bool = False) -> set[Hashable]:
    """Return the given handles that an object itself is; with `by_value`, also those whose number or name it is."""
    found: set[Hashable] = {id(one), _descriptor_of(one), _name_of_semaphore(one)}
    if by_value and type(one) is int:
        found.add(one)
    elif by_value and type(one) is str:
        found.update(name for name in identities if type(name) is str and _is_name_of(one, name))
    return found.intersection(identities)


def _is_name_of(text: Any, name: str) -> bool:
    """Return whether a text is the name of a folder entry, its path, or a path below it."""
    return bool(text == name or text.endswith(f"/{name}") or f"/{name}/" in text)


def _name_of_semaphore(one: Any) -> str:
    """Return the name of a semaphore in /dev/shm; empty for one without a name and for any other object."""
    name = getattr(one, "name", None) if type(one).__module__ == "_multiprocessing" else None
    return f"sem.{name.lstrip('/')}" if name else ""


def _descriptor_of(one: Any) -> int:
    """Return the descriptor of a file, socket or epoll object; -1 for a closed one and for any other object."""
    kind = type(one)
    try:
        if kind is io.FileIO:
            return int(one.fileno())
        if issubclass(kind, socket.socket):
            return int(socket.socket.fileno(one))
        if hasattr(select, "epoll") and kind is select.epoll:
            return int(one.fileno())
    except (ValueError, OSError):
        pass
    return -1


def is_opaque_handle(kind: type) -> bool:
    """Return whether a type is written in C and its objects may keep handles that cannot be inspected."""
    # `module_of` bypasses the metaclass, which may override attribute access.
    top = str(module_of(kind)).partition(".")[0]
    if (top in sys.stdlib_module_names and top not in _STDLIB_WITH_DESCRIPTORS) or top in _MEMORY_ONLY_MODULES:
        return False
    # If a `class` statement made the type, the parts of its objects can be inspected, so no handle is hidden.
    return is_c(kind)
