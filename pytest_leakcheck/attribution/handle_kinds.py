"""What has an identity: how descriptors, threads, children, entries of a folder and tasks are counted, listed and recognised."""

from __future__ import annotations

import gc
import io
import mmap
import select
import socket
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

from pytest_leakcheck.attribution.live_handles import alive_tasks, live_children, open_files, running_threads
from pytest_leakcheck.attribution.object_inspection import module_of, mro_of, namespace_of
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.probes.device import Vram

# An object is followed so far into what it is made of.
_PARTS: Final = 200
# What is written in C stands for them only where it is an entry or an attribute of one.
_NEAR: Final = 3
# The entries that come must stand for so many of the things that come.
_MOST: Final = 0.8
# So many entries are looked at.
_SAMPLE: Final = 24
_ENDS: Final = (type, ModuleType, FunctionType, CodeType, FrameType)
# Their objects hold memory alone.
_VALUES: Final = frozenset({"builtins", "numpy", "pandas", "pyarrow", "torch"})
# Of the standard library's types in C, those of these modules keep descriptors that they do not show.
_WITH_DESCRIPTORS: Final = frozenset({"sqlite3", "_dbm", "_gdbm"})
_MADE_BY_CLASS: Final = frozenset({"__dict__", "__slots__", "__weakref__"})
_flags = type.__dict__["__flags__"].__get__
_HEAP_TYPE: Final = 1 << 9
# Of the standard library's types in C, those of these modules keep memory that is no object's.
_WITH_MEMORY: Final = frozenset(
    {"_bz2", "_ctypes", "_hashlib", "_lzma", "_ssl", "_zstd", "mmap", "pyexpat", "sqlite3", "zlib"}
)
_OBJECTS_ONLY: Final = frozenset({"builtins", *sys.stdlib_module_names}) - _WITH_MEMORY


@dataclass(frozen=True, slots=True)
class Things:
    """One kind of them.

    Attributes:
        count: Cheap, and another number when one has come or gone.
        list_now: All that there are, by identity, with what they are: where that changes, it is another thing.
        sized: What they are is how much each takes; what grows is the sum.
    """

    count: Callable[[], int]
    list_now: Callable[[], Mapping[Any, str]]
    sized: bool = False

    def weight(self, what: str) -> int:
        """How much one of them makes out of what grows."""
        return int(what) if self.sized else 1


def things_of(resource: str, count: Callable[[], int], folder: str = "") -> Things | None:
    """The kind that a resource counts; None where it counts something else.

    Args:
        resource: The resource.
        count: Its counter.
        folder: For entries of a folder, its path.
    """
    kind = find_resource(resource).handles
    if kind == "fds":
        return Things(count, open_files)
    if kind == "threads":
        return Things(count, lambda: dict.fromkeys(running_threads(), ""))
    if kind == "children":
        return Things(_children_of_this_thread, lambda: dict.fromkeys(live_children(), ""))
    if kind == "tasks":
        return Things(count, lambda: dict.fromkeys(alive_tasks(), ""))
    if folder:
        return Things(count, lambda: dict.fromkeys((one.name for one in Path(folder).iterdir()), folder))
    return None


def pieces_of(device: Vram) -> Things | None:
    """What allocators of devices have given out; None where they do not tell one piece from another."""
    if device.pieces() is None:
        return None
    return Things(device.read, lambda: {key: str(size) for key, size in (device.pieces() or {}).items()}, sized=True)


def _children_of_this_thread() -> int:
    """A number that changes with the children of the running thread: to walk the tree would take too long."""
    with Path("/proc/thread-self/children").open("rb", buffering=0) as file:
        return hash(file.read())


def stand_for(entries: Sequence[tuple[object, ...]], identities: Collection[Hashable]) -> bool:
    """Whether these entries, each of one object or of a key and a value, are made of what stands for most of these things.

    That is a number or a name of theirs, an open file or socket; or an object of a type that is written in C, which cannot be
    looked into. So a list of results that grows as fast is not taken for what holds the descriptors.

    Args:
        entries: All that came while the things were watched, and perhaps some more; a sample of them is looked at.
        identities: Of the things that came.
    """
    sample = entries[:: max(1, len(entries) // _SAMPLE)]
    wanted = min(len(sample) * min(1.0, len(identities) / max(1, len(entries))), len(identities))
    numbers = frozenset(key for key in identities if isinstance(key, int))
    names = frozenset(key for key in identities if isinstance(key, str))
    found: set[Hashable] = set()
    for part in (part for entry in sample for part in entry):
        known = _identities_in(part, numbers, names)
        if known is None:
            return True
        found |= known
    return len(found) >= _MOST * wanted > 0


def _identities_in(one: object, numbers: frozenset[int], names: frozenset[str]) -> set[Hashable] | None:
    """Which of these an object is made of; None where it has a part that cannot be looked into."""
    found: set[Hashable] = set()
    seen, level, depth = {id(one)}, [one], 0
    while level and len(seen) < _PARTS and type(one) not in _ENDS:
        depth += 1
        for part in level:
            kind = type(part)
            if depth <= _NEAR and (is_opaque_handle(kind) or kind is mmap.mmap):
                # A mapping has a copy of the descriptor that it was made from, whose number it does not tell.
                return None
            if id(part) in numbers:
                found.add(id(part))
            elif kind is int and part in numbers:
                found.add(part)
            elif kind is str:
                found |= {name for name in names if _is_name_of(part, name)}
            else:
                found |= {_descriptor(part)} & numbers | {_name_of_semaphore(part)} & names
        following = {id(part): part for part in gc.get_referents(*level) if type(part) not in _ENDS}
        level = [part for place, part in following.items() if place not in seen]
        seen |= following.keys()
    return found


def handles_of(one: object, identities: Collection[Hashable], *, by_value: bool = False) -> set[Hashable]:
    """Which of these things one object is itself; with ``by_value`` also which it is the number or the name of."""
    found: set[Hashable] = {id(one), _descriptor(one), _name_of_semaphore(one)}
    if by_value and type(one) is int:
        found.add(one)
    elif by_value and type(one) is str:
        found.update(name for name in identities if type(name) is str and _is_name_of(one, name))
    return found.intersection(identities)


def _is_name_of(text: Any, name: str) -> bool:
    """Whether a text is the name of an entry, with or without the path to it, or lies below it."""
    return bool(text == name or text.endswith(f"/{name}") or f"/{name}/" in text)


def _name_of_semaphore(one: Any) -> str:
    """As it is called in /dev/shm; empty for anything else, and for one without a name."""
    name = getattr(one, "name", None) if type(one).__module__ == "_multiprocessing" else None
    return f"sem.{name.lstrip('/')}" if name else ""


def _descriptor(one: Any) -> int:
    """The descriptor of a file or socket; -1 for anything else, and for what is closed."""
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
    """Whether it is written in C, in a module that may keep such a thing."""
    # Past a metaclass, which may answer anything.
    top = str(module_of(kind)).partition(".")[0]
    if (top in sys.stdlib_module_names and top not in _WITH_DESCRIPTORS) or top in _VALUES:
        return False
    # The parts of what a `class` statement made are looked at instead.
    return is_c(kind)


def is_of_extension(kind: type) -> bool:
    """Whether any of its bases is written in C, in an extension module: what it keeps need not be a Python object."""
    tops = {str(module_of(base)).partition(".")[0] for base in mro_of(kind) if is_c(base)}
    return not tops <= _OBJECTS_ONLY


def is_c(kind: type) -> bool:
    # A `class` statement makes a type on the heap (Py_TPFLAGS_HEAPTYPE), and leaves one of these names in it.
    return not _flags(kind) & _HEAP_TYPE or _MADE_BY_CLASS.isdisjoint(namespace_of(kind))
