"""Inspect types, sizes, entries, attributes and parts of objects without running their code.

A lazy proxy imports a library if its ``__class__`` is read, and arrays compare element by element.
So types are read with ``type()``, values compared by identity, and attributes of classes read
without the metaclass.
"""

from __future__ import annotations

import functools
import gc
import io
import sys
import types
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from contextvars import Context
from enum import Enum
from itertools import islice
from typing import Any, Final

CONTAINERS: Final = (list, dict, set, deque, Context)
# Types of values that grow in place or are replaced by longer ones.
PAYLOAD: Final = (str, bytes, bytearray, tuple, frozenset, array, io.BytesIO, io.StringIO)
LRU: Final = type(functools.lru_cache(lambda: None))
# The C type in which a bounded `lru_cache` keeps its results, which it does not expose.
LRU_ENTRY_TYPE: Final = "_lru_list_elem"
# Types whose objects the whole program shares, or that lead to all of it.
SHARED_TYPES: Final = (type, types.ModuleType, types.FunctionType, types.CodeType, types.FrameType)
_POINTER_BYTES: Final = 8
# Longest name that is shown in full, in characters.
_MAX_NAME_LENGTH: Final = 40
# From here on, a number may be an address, a random one or an account.
_MIN_LARGE: Final = 10_000
# The parts of an entry that are sized or searched.
MAX_PARTS: Final = 200

# These bypass the metaclass, which may override attribute access.
mro_of = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__
basic_size: Final[Callable[[type], int]] = type.__dict__["__basicsize__"].__get__
module_of = type.__dict__["__module__"].__get__
qualname_of = type.__dict__["__qualname__"].__get__
_flags_of = type.__dict__["__flags__"].__get__
# Py_TPFLAGS_HEAPTYPE (Include/object.h).
_HEAP_TYPE_FLAG: Final = 1 << 9
# A `class` statement leaves one of these names, unless a base has the attribute dict and no slots
# are declared.
_CLASS_STATEMENT_NAMES: Final = frozenset({"__dict__", "__slots__", "__weakref__"})
C_DESCRIPTOR_TYPES: Final = frozenset(
    {
        types.ClassMethodDescriptorType,
        types.GetSetDescriptorType,
        types.MemberDescriptorType,
        types.MethodDescriptorType,
        types.WrapperDescriptorType,
    }
)
# Standard library modules with types written in C whose objects keep memory outside Python objects.
_STDLIB_WITH_C_MEMORY: Final = frozenset(
    {"_bz2", "_ctypes", "_hashlib", "_lzma", "_ssl", "_zstd", "mmap", "pyexpat", "sqlite3", "zlib"}
)
_OBJECTS_ONLY_MODULES: Final = (
    frozenset({"builtins", *sys.stdlib_module_names}) - _STDLIB_WITH_C_MEMORY
)
_C_METHOD_TYPES: Final = (
    type(str.join),
    type(object.__init__),
    type("".__str__),
    type(dict.__dict__["fromkeys"]),
)


def class_name(kind: type) -> str:
    """Return the qualified name of a class."""
    return str(qualname_of(kind))


def type_name(obj: object) -> str:
    """Return the qualified name of an object's type."""
    return class_name(type(obj))


def module_of_type(kind: type) -> str:
    """Return the name of the module that defines a class; empty if it has none."""
    try:
        name = module_of(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def container_kind(obj: object) -> type | None:
    """Return the type in `CONTAINERS` that an object is an instance of, or None."""
    kind = type(obj)
    return next((base for base in CONTAINERS if kind is base or issubclass(kind, base)), None)


def length(obj: object) -> int:
    """Return a container's length without calling an overridden ``__len__``; 0 for others."""
    kind: Any = container_kind(obj)
    return int(kind.__len__(obj)) if kind else 0


def last_entries(obj: Any, count: int) -> list[tuple[object, object]]:
    """List the newest entries as (key, value), newest first.

    Keys are indexes, or the elements of a set (unordered). Those of a context are unordered too,
    and are its variables.
    """
    kind: Any = container_kind(obj)
    if kind is dict:
        return list(islice(reversed(dict.items(obj)), count))
    if kind is Context:
        return list(islice(obj.items(), count))
    if kind is set:
        return [(value, value) for value in islice(set.__iter__(obj), count)]
    last = length(obj) - 1
    return [(last - at, value) for at, value in enumerate(islice(kind.__reversed__(obj), count))]


def array_types() -> dict[int, str]:
    """Name types that keep data elsewhere (loaded arrays, in-memory files), by their ``id()``."""
    wanted = (("numpy", "ndarray"), ("torch", "Tensor"), ("io", "StringIO"), ("io", "BytesIO"))
    found = (
        (getattr(sys.modules.get(module), name, None), f"{module}.{name}")
        for module, name in wanted
    )
    return {id(kind): name for kind, name in found if kind is not None}


def amount(obj: object) -> int:
    """Return the size of a `PAYLOAD` value or an array, in bytes or characters; 0 for others."""
    kind = type(obj)
    value: Any = obj
    if kind in (str, bytes, bytearray):
        return len(value)
    if kind in (tuple, frozenset):
        return _POINTER_BYTES * len(value)
    if kind is array:
        return len(value) * int(value.itemsize)
    try:
        if kind in (io.BytesIO, io.StringIO):
            here = value.tell()
            end = value.seek(0, io.SEEK_END)
            value.seek(here)
            return int(end)
        return int(value.nbytes) if id(kind) in array_types() else 0
    except (RuntimeError, TypeError, ValueError):
        # A sparse tensor has no storage, and an in-memory file may be closed.
        return 0


def is_c(kind: type) -> bool:
    """Return whether a type is written in C."""
    if not _flags_of(kind) & _HEAP_TYPE_FLAG:
        return True
    # C can create heap types too. Their methods and attributes are descriptors written in C.
    names = namespace_of(kind)
    return _CLASS_STATEMENT_NAMES.isdisjoint(names) and any(
        type(one) in C_DESCRIPTOR_TYPES for one in names.values()
    )


def is_of_extension(kind: type) -> bool:
    """Return whether a type, or a C base, may keep memory outside Python objects, as in `zlib`."""
    tops = {str(module_of(base)).partition(".")[0] for base in mro_of(kind) if is_c(base)}
    return not tops <= _OBJECTS_ONLY_MODULES


def is_shared(obj: object) -> bool:
    """Return whether the whole program shares an object, which is no part of what refers to it."""
    return issubclass(type(obj), SHARED_TYPES)


def walk(
    start: Iterable[object],
    is_part: Callable[[object], bool],
    limit: int,
    referents: Callable[..., Iterable[object]] = gc.get_referents,
) -> Iterator[dict[int, object]]:
    """Yield objects and the parts that they refer to, level by level, each once, by ``id()``.

    A level has at most `limit` parts. No further level is yielded once that many objects have been
    found.
    """
    seen: dict[int, object] = {}
    level = {id(one): one for one in start}
    while level:
        seen |= level
        yield level
        if len(seen) >= limit:
            return
        new = (
            (id(part), part)
            for part in referents(*level.values())
            if id(part) not in seen and is_part(part)
        )
        level = dict(islice(new, limit))


def parts_of(levels: Iterable[dict[int, object]]) -> dict[int, object]:
    """Return all objects of a `walk`, by ``id()``."""
    parts: dict[int, object] = {}
    for level in levels:
        parts |= level
    return parts


def size_of(obj: object) -> int:
    """Return the bytes of an object without its parts."""
    kind = type(obj)
    if id(kind) in array_types():
        return amount(obj)
    if kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        # Their field for a length holds something else.
        return basic_size(kind)
    # For a user's class, `sys.getsizeof` would run its `__sizeof__`.
    return sys.getsizeof(obj, 0) if is_c(kind) else object.__sizeof__(obj)


def own_size(obj: object, beside: object = None) -> int:
    """Return the bytes of an entry, without the parts shared with a neighboring one."""
    return sum(size for size, _part in _own_parts(obj, beside))


def payload(obj: object, beside: object) -> tuple[object, int]:
    """Return the part with at least half of an entry's own bytes, else the entry; and its bytes."""
    sizes = _own_parts(obj, beside)
    total = sum(size for size, _part in sizes)
    largest, part = max(sizes, key=lambda pair: pair[0], default=(0, obj))
    return (part, largest) if 2 * largest >= total else (obj, total)


def is_opaque(obj: object) -> bool:
    """Return whether an object or a part of it may keep memory whose size cannot be read."""
    return any(is_of_extension(type(part)) for part in _sized_parts(obj).values())


def _own_parts(obj: object, beside: object) -> list[tuple[int, object]]:
    shared = _sized_parts(beside)
    return [
        (size_of(part), part) for place, part in _sized_parts(obj).items() if place not in shared
    ]


def _sized_parts(obj: object) -> dict[int, object]:
    # A traceback keeps the variables of its frames.
    return parts_of(
        walk((obj,), lambda part: type(part) is types.FrameType or not is_shared(part), MAX_PARTS)
    )


def instance_dict(obj: object) -> dict[str, object] | None:
    """Return an instance's attribute dict (the filled one if a C base has its own), or None."""
    empty = None
    for base in mro_of(type(obj)):
        descriptor = namespace_of(base).get("__dict__")
        if type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            with suppress(AttributeError, TypeError):
                found = descriptor.__get__(obj)
                if type(found) is dict and found:
                    return found
                empty = found if type(found) is dict else empty
    return empty


def slots(obj: object) -> Iterator[tuple[str, object]]:
    """Yield names and values of an instance's slots, and of the members that C types declare."""
    for base in mro_of(type(obj)):
        for name, descriptor in list(namespace_of(base).items()):
            if type(descriptor) is types.MemberDescriptorType and type(name) is str:
                with suppress(AttributeError, TypeError):
                    yield name, descriptor.__get__(obj)


def attributes_of(obj: object) -> dict[str, object]:
    """Return the attributes of an instance, in its dict or its slots, without running its code."""
    return instance_dict(obj) or dict(slots(obj))


def variables_of(obj: Any) -> dict[str, object]:
    """Return the own attributes of a module, class or instance, without running its code."""
    return dict(namespace_of(obj)) if issubclass(type(obj), type) else attributes_of(obj)


def show_key(key: Any) -> str:
    """Return a dict's key as text; of a text, a large number or another object, only the type.

    Keys are values of the running program, such as tokens of its sessions. Its constants say where
    to look.
    """
    kind = type(key)
    if key is None or kind is bool or (kind is int and abs(key) < _MIN_LARGE):
        return repr(key)
    if kind in (str, bytes):
        return f"a {type_name(key)} of {len(key)}"
    if issubclass(kind, type):
        return class_name(key)
    if issubclass(kind, Enum) and type(name := (instance_dict(key) or {}).get("_name_")) is str:
        return f"{class_name(kind)}.{name}"
    return f"a {type_name(key)}"


def show_name(name: str) -> str:
    """Return the name of a logger, a thread or a variable in quotes, shortened if it is long."""
    return repr(name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…")


def describe(obj: object) -> str:
    """Describe an object by its type and, for a container or tuple, its length."""
    kind = container_kind(obj)
    if kind is not None:
        return f"{type_name(obj)} of {length(obj)}"
    if type(obj) is tuple:
        return f"tuple of {len(obj)}"
    return type_name(obj)


def describe_many(entries: Collection[object], count: int) -> str:
    """Describe `count` entries by a sample's most frequent type: ``20 × bytes, 3,033 B each``."""
    by_type: dict[int, list[object]] = {}
    for entry in entries:
        by_type.setdefault(id(type(entry)), []).append(entry)
    most = max(by_type.values(), key=len)
    name = array_types().get(id(type(most[0])), type_name(most[0]))
    # In a chain, one entry contains the other, whose bytes are then all shared: the larger result
    # is the right one.
    beside = most[1] if len(most) > 1 else None
    size = max(own_size(most[0], beside), own_size(beside, most[0]) if beside is not None else 0)
    return f"{count} × {name}, {size:,} B each"


def name_of_called(called: Any) -> str:
    """Return the (qualified) name of a C function, class or code object; else that of the type."""
    kind = type(called)
    if kind is types.BuiltinFunctionType:
        owner = called.__self__
        if owner is None or type(owner) is types.ModuleType:
            return str(called.__name__)
        return f"{qualname_of(owner if issubclass(type(owner), type) else type(owner))}.{called.__name__}"
    if kind is types.CodeType:
        return str(called.co_qualname)
    if kind in _C_METHOD_TYPES:
        return str(called.__qualname__)
    if issubclass(kind, type):
        return str(qualname_of(called))
    return _ctypes_symbol(called) or str(qualname_of(kind))


def _ctypes_symbol(called: Any) -> str:
    """Return the symbol name of a `ctypes` function; empty for other objects."""
    ctypes: Any = sys.modules.get("_ctypes")
    if ctypes is None or not any(base is ctypes.CFuncPtr for base in mro_of(type(called))):
        return ""
    try:
        name = object.__getattribute__(called, "__name__")
    except AttributeError:
        return ""
    return name if type(name) is str else ""
