"""Inspect types, sizes, entries and attributes of objects without running their code.

Reading ``__class__`` of a lazy proxy imports a library, and arrays compare element by element. So this module reads
types with ``type()``, compares values by identity, and reads class attributes without the metaclass.
"""

from __future__ import annotations

import gc
import io
import operator
import sys
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import compress, islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any, Final

CONTAINERS: Final = (list, dict, set, deque)
# Types of values that grow in place or are replaced by longer ones.
PAYLOAD: Final = (str, bytes, bytearray, tuple, frozenset, array, io.BytesIO, io.StringIO)
# Types whose objects are shared by many others; they never count as part of one entry.
_SHARED_TYPES: Final = (type, ModuleType, FunctionType)
_MODULE_TYPE_IDS: Final = frozenset((id(ModuleType),))
_POINTER_BYTES: Final = 8
# Longest key that is shown in full, in characters.
_MAX_KEY_LENGTH: Final = 40
# References of an entry are not followed further once this many of its parts have been found.
_MAX_PARTS: Final = 200

# These bypass the metaclass, which may override attribute access.
mro_of = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__
basic_size: Final[Callable[[type], int]] = type.__dict__["__basicsize__"].__get__
module_of = type.__dict__["__module__"].__get__
qualname_of = type.__dict__["__qualname__"].__get__

_C_METHOD_TYPES: Final = (type(str.join), type(object.__init__), type("".__str__), type(dict.__dict__["fromkeys"]))


def all_objects() -> list[object]:
    """List the objects that the garbage collector lists, without modules.

    The collector also lists the dict of a module. The module's other referents are private to its C code and may be
    dead: in Python 3.12, ``gc.get_referents`` of ``_asyncio`` revives objects from a free list and makes it a ring.
    """
    objects = gc.get_objects()
    modules = map(_MODULE_TYPE_IDS.__contains__, map(id, map(type, objects)))
    return list(compress(objects, map(operator.not_, modules)))


def class_name(kind: type) -> str:
    """Return the qualified name of a class."""
    return str(qualname_of(kind))


def type_name(one: object) -> str:
    """Return the qualified name of an object's type."""
    return class_name(type(one))


def module_of_type(kind: type) -> str:
    """Return the name of the module that defines a class; empty if it has none."""
    try:
        name = module_of(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def container_kind(one: object) -> type | None:
    """Return the type in `CONTAINERS` that an object is an instance of, or None."""
    kind = type(one)
    return next((base for base in CONTAINERS if kind is base or issubclass(kind, base)), None)


def length(one: object) -> int:
    """Return the number of entries of a container without calling an overridden ``__len__``; 0 for other objects."""
    kind: Any = container_kind(one)
    return int(kind.__len__(one)) if kind else 0


def last_entries(one: Any, count: int) -> list[tuple[object, object]]:
    """List the newest entries as (key, value), newest first; keys are indexes, or the elements of a set (unordered)."""
    kind: Any = container_kind(one)
    if kind is dict:
        return list(islice(reversed(dict.items(one)), count))
    if kind is set:
        return [(value, value) for value in islice(set.__iter__(one), count)]
    last = length(one) - 1
    return [(last - at, value) for at, value in enumerate(islice(kind.__reversed__(one), count))]


def array_types() -> dict[int, str]:
    """Return the names of types that keep their data elsewhere (loaded arrays, in-memory files), by type ``id()``."""
    wanted = (("numpy", "ndarray"), ("torch", "Tensor"), ("io", "StringIO"), ("io", "BytesIO"))
    found = ((getattr(sys.modules.get(module), name, None), f"{module}.{name}") for module, name in wanted)
    return {id(kind): name for kind, name in found if kind is not None}


def amount(one: object, arrays: dict[int, str]) -> int:
    """Return the size of a `PAYLOAD` value or an array, in bytes or characters; 0 for other objects."""
    kind = type(one)
    value: Any = one
    if kind in (str, bytes, bytearray):
        return len(value)
    if kind in (tuple, frozenset):
        return _POINTER_BYTES * len(value)
    if kind is array:
        return len(value) * int(value.itemsize)
    if kind in (io.BytesIO, io.StringIO):
        return _stream_size(value)
    if id(kind) in arrays:
        return _array_size(value)
    return 0


def _array_size(value: Any) -> int:
    """Return the bytes of an array, or of the own elements of a view; 0 without storage, as for a sparse tensor."""
    try:
        return int(value.nbytes)
    except (RuntimeError, TypeError):
        return 0


def _stream_size(stream: io.BytesIO | io.StringIO) -> int:
    """Return the size of an in-memory file, keeping its position; 0 if it is closed."""
    try:
        here = stream.tell()
        end = stream.seek(0, io.SEEK_END)
        stream.seek(here)
    except ValueError:
        return 0
    return end


def own_size(one: object, beside: object, arrays: dict[int, str]) -> int:
    """Return the bytes of an entry, without the parts shared with a neighboring one; `arrays` is from `array_types`."""
    shared = _parts(beside)
    return sum(_size(part, arrays) for place, part in _parts(one).items() if place not in shared)


def payload(one: object, beside: object, arrays: dict[int, str]) -> tuple[object, int]:
    """Return the part of an entry that holds at least half of its bytes, and the size of that part.

    If there is no such part, return the entry itself and the bytes of all its parts. Parts that are shared with a
    neighboring entry do not count. The arguments are those of `own_size`.
    """
    shared = _parts(beside)
    sizes = [(_size(part, arrays), part) for place, part in _parts(one).items() if place not in shared]
    total = sum(size for size, _part in sizes)
    largest, part = max(sizes, key=lambda pair: pair[0], default=(0, one))
    return (part, largest) if 2 * largest >= total else (one, total)


def _parts(one: object) -> dict[int, object]:
    """Return an object and what it refers to, directly or indirectly, by ``id()``."""
    parts = {id(one): one}
    level = [one]
    while level and len(parts) < _MAX_PARTS:
        inner = [
            part
            for part in gc.get_referents(*level)
            if id(part) not in parts and not issubclass(type(part), _SHARED_TYPES)
        ]
        parts.update((id(part), part) for part in inner[:_MAX_PARTS])
        level = inner[:_MAX_PARTS]
    return parts


def _size(one: object, arrays: dict[int, str]) -> int:
    kind = type(one)
    if id(kind) in arrays:
        return amount(one, arrays)
    # For a user's class, `sys.getsizeof` would run its `__sizeof__`.
    plain = any(kind is one_of for one_of in (*PAYLOAD, *CONTAINERS, int, float, complex))
    return sys.getsizeof(one) if plain else basic_size(kind)


def is_opaque(one: object) -> bool:
    """Return whether an object is or contains an instance of a type that is written in C and not builtin."""
    return any(_is_foreign_c_type(type(part)) for part in _parts(one).values())


def _is_foreign_c_type(kind: type) -> bool:
    # A `class` statement leaves one of these names in the namespace of the class or of one of its bases.
    made_by_class_statement = any(
        "__dict__" in namespace_of(base) or "__slots__" in namespace_of(base) for base in mro_of(kind)
    )
    return (
        not made_by_class_statement
        and not any(kind is own for own in (*PAYLOAD, *CONTAINERS))
        and module_of_type(kind) != "builtins"
    )


def instance_dict(one: object) -> dict[str, object] | None:
    """Return an instance's attribute dict, the filled one if a base in C has its own; None where it has none."""
    empty = None
    for base in mro_of(type(one)):
        descriptor = namespace_of(base).get("__dict__")
        if type(descriptor) in (GetSetDescriptorType, MemberDescriptorType):
            try:
                found = descriptor.__get__(one)
            except (AttributeError, TypeError):
                continue
            if type(found) is dict and found:
                return found
            empty = empty if type(found) is not dict else found
    return empty


def slots(one: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values of an instance's slots, and of the members that C types declare."""
    for base in mro_of(type(one)):
        for name, descriptor in list(namespace_of(base).items()):
            if type(descriptor) is MemberDescriptorType and type(name) is str:
                try:
                    yield name, descriptor.__get__(one)
                except (AttributeError, TypeError):
                    continue


def class_attributes(kind: type) -> list[tuple[str, object]]:
    """List the names and values in the namespace of a class."""
    return list(namespace_of(kind).items())


def show_key(key: object) -> str:
    """Return the ``repr`` of a str, bytes or number, shortened if long; else the type, as ``repr`` could run code."""
    if type(key) in (str, bytes, int, bool, float):
        text = repr(key)
        return text if len(text) <= _MAX_KEY_LENGTH else f"{text[: _MAX_KEY_LENGTH - 1]}…"
    return f"a {type_name(key)}"


def describe(one: object) -> str:
    """Describe an object by its type and, for a container or tuple, its length."""
    kind = container_kind(one)
    if kind is not None:
        return f"{type_name(one)} of {length(one)}"
    if type(one) is tuple:
        return f"tuple of {len(one)}"
    return type_name(one)


def describe_many(entries: Collection[object], count: int, arrays: dict[int, str]) -> str:
    """Describe `count` entries by the most frequent type in a sample, as ``20 × bytes, 3,033 B each``."""
    by_type: dict[int, list[object]] = {}
    for one in entries:
        by_type.setdefault(id(type(one)), []).append(one)
    most = max(by_type.values(), key=len)
    name = arrays.get(id(type(most[0])), type_name(most[0]))
    # In a chain, one entry contains the other, so the bytes of the contained entry are all shared. The larger result is
    # the right one.
    beside = most[1] if len(most) > 1 else None
    each = max(own_size(most[0], beside, arrays), own_size(beside, most[0], arrays) if beside is not None else 0)
    return f"{count} × {name}, {each:,} B each"


def name_of_called(called: Any) -> str:
    """Return the name of a C function, a class or a code object, qualified if possible; else the name of the type."""
    kind = type(called)
    if kind is BuiltinFunctionType:
        owner = called.__self__
        if owner is None or type(owner) is ModuleType:
            return str(called.__name__)
        return f"{qualname_of(owner if issubclass(type(owner), type) else type(owner))}.{called.__name__}"
    if kind is CodeType:
        return name_of(called)
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


def name_of(code: CodeType) -> str:
    """Return the qualified name of a code object."""
    return code.co_qualname
