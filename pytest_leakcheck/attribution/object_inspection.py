"""Looking at objects without running any code of theirs: types, sizes, entries, attributes.

A lazy proxy imports a library when it is asked for its class, and arrays compare element by element. So types are asked
for with ``type()``, values are told apart by identity, and what a class defines is read past its metaclass.
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
# Values that grow in place, or are replaced by longer ones.
PAYLOAD: Final = (str, bytes, bytearray, tuple, frozenset, array, io.BytesIO, io.StringIO)
# What many things share: never a part of one entry.
_SHARED: Final = (type, ModuleType, FunctionType)
_MODULE: Final = frozenset((id(ModuleType),))
_POINTER: Final = 8
_NAMES: Final = 40
_PARTS: Final = 200

# A metaclass may override attribute access: these go past it.
mro_of = type.__dict__["__mro__"].__get__
namespace_of = type.__dict__["__dict__"].__get__
basic_size: Final[Callable[[type], int]] = type.__dict__["__basicsize__"].__get__
module_of = type.__dict__["__module__"].__get__
qualname_of = type.__dict__["__qualname__"].__get__

_METHODS: Final = (type(str.join), type(object.__init__), type("".__str__), type(dict.__dict__["fromkeys"]))


def all_objects() -> list[object]:
    """What the collector lists, without modules.

    Their names lie in a dict, which is listed by itself. What else a module refers to is private to C, and may be dead:
    in Python 3.12 ``gc.get_referents`` of ``_asyncio`` revives objects from a list of spare ones, and ties that into a ring.
    """
    objects = gc.get_objects()
    modules = map(_MODULE.__contains__, map(id, map(type, objects)))
    return list(compress(objects, map(operator.not_, modules)))


def class_name(kind: type) -> str:
    return str(qualname_of(kind))


def type_name(one: object) -> str:
    return class_name(type(one))


def module_of_type(kind: type) -> str:
    """The module that a class was defined in; empty where it does not say."""
    try:
        name = module_of(kind)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def container_kind(one: object) -> type | None:
    """Which of `CONTAINERS` it is or derives from."""
    kind = type(one)
    return next((base for base in CONTAINERS if kind is base or issubclass(kind, base)), None)


def length(one: object) -> int:
    """How many entries a container has, whatever its class answers."""
    kind: Any = container_kind(one)
    return int(kind.__len__(one)) if kind else 0


def last_entries(one: Any, count: int) -> list[tuple[object, object]]:
    """The entries that came last, as (key, value), newest first; an element of a set is its own key.

    A set has no order: of it, any are given.
    """
    kind: Any = container_kind(one)
    if kind is dict:
        return list(islice(reversed(dict.items(one)), count))
    if kind is set:
        return [(value, value) for value in islice(set.__iter__(one), count)]
    last = length(one) - 1
    return [(last - at, value) for at, value in enumerate(islice(kind.__reversed__(one), count))]


def array_types() -> dict[int, str]:
    """Types whose data lie elsewhere, by their identity: arrays of libraries that are loaded, and files in memory."""
    wanted = (("numpy", "ndarray"), ("torch", "Tensor"), ("io", "StringIO"), ("io", "BytesIO"))
    found = ((getattr(sys.modules.get(module), name, None), f"{module}.{name}") for module, name in wanted)
    return {id(kind): name for kind, name in found if kind is not None}


def amount(one: object, arrays: dict[int, str]) -> int:
    """How much a value of `PAYLOAD` or an array holds, in bytes or characters; 0 for anything else."""
    kind = type(one)
    value: Any = one
    if kind in (str, bytes, bytearray):
        return len(value)
    if kind in (tuple, frozenset):
        return _POINTER * len(value)
    if kind is array:
        return len(value) * int(value.itemsize)
    if kind in (io.BytesIO, io.StringIO):
        return _end(value)
    if id(kind) in arrays:
        # A view holds the whole of its base, which is counted where that is held; a tensor without data has no bytes.
        return int(value.nbytes)
    return 0


def _end(stream: io.BytesIO | io.StringIO) -> int:
    try:
        here = stream.tell()
        end = stream.seek(0, io.SEEK_END)
        stream.seek(here)
    except ValueError:
        # Closed.
        return 0
    return end


def own_size(one: object, beside: object, arrays: dict[int, str]) -> int:
    """Bytes of an entry with what it holds, without what the entry beside it holds too."""
    shared = _parts(beside)
    return sum(_size(part, arrays) for place, part in _parts(one).items() if place not in shared)


def _parts(one: object) -> dict[int, object]:
    parts = {id(one): one}
    level = [one]
    while level and len(parts) < _PARTS:
        inner = [
            part for part in gc.get_referents(*level) if id(part) not in parts and not issubclass(type(part), _SHARED)
        ]
        parts.update((id(part), part) for part in inner[:_PARTS])
        level = inner[:_PARTS]
    return parts


def _size(one: object, arrays: dict[int, str]) -> int:
    kind = type(one)
    if id(kind) in arrays:
        return amount(one, arrays)
    # What a class of the user's own would answer is its code.
    plain = any(kind is one_of for one_of in (*PAYLOAD, *CONTAINERS, int, float, complex))
    return sys.getsizeof(one) if plain else basic_size(kind)


def is_opaque(one: object) -> bool:
    """Whether it is, or has in it, an instance of a type written in C that is none of Python's own."""
    return any(_is_foreign(type(part)) for part in _parts(one).values())


def _is_foreign(kind: type) -> bool:
    # What a class statement has made keeps its attributes in a dict or in slots, and what derives from it has one too.
    made_here = any("__dict__" in namespace_of(base) or "__slots__" in namespace_of(base) for base in mro_of(kind))
    return (
        not made_here and not any(kind is own for own in (*PAYLOAD, *CONTAINERS)) and module_of_type(kind) != "builtins"
    )


def instance_dict(one: object) -> dict[str, object] | None:
    """The attributes of an instance, where it has such a dict; of two (a base in C has one as well) the one in use."""
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
    """The attributes of an instance that lie in slots, and those that types written in C declare."""
    for base in mro_of(type(one)):
        for name, descriptor in list(namespace_of(base).items()):
            if type(descriptor) is MemberDescriptorType and type(name) is str:
                try:
                    yield name, descriptor.__get__(one)
                except (AttributeError, TypeError):
                    continue


def class_attributes(kind: type) -> list[tuple[str, object]]:
    return list(namespace_of(kind).items())


def show_key(key: object) -> str:
    """A key as it is shown; only what is known to have a harmless text is shown at all."""
    if type(key) in (str, bytes, int, bool, float):
        text = repr(key)
        return text if len(text) <= _NAMES else f"{text[: _NAMES - 1]}…"
    return f"a {type_name(key)}"


def describe(one: object) -> str:
    """What it is, with the number of its entries where it has any."""
    kind = container_kind(one)
    if kind is not None:
        return f"{type_name(one)} of {length(one)}"
    if type(one) is tuple:
        return f"tuple of {len(one)}"
    return type_name(one)


def describe_many(entries: Collection[object], count: int, arrays: dict[int, str]) -> str:
    """Entries by their most frequent type, as ``20 × bytes, 3,033 B each``."""
    by_type: dict[int, list[object]] = {}
    for one in entries:
        by_type.setdefault(id(type(one)), []).append(one)
    most = max(by_type.values(), key=len)
    name = arrays.get(id(type(most[0])), type_name(most[0]))
    # Of a chain, one holds the other with all that it holds.
    beside = most[1] if len(most) > 1 else None
    each = max(own_size(most[0], beside, arrays), own_size(beside, most[0], arrays) if beside is not None else 0)
    return f"{count} × {name}, {each:,} B each"


def name_of_called(called: Any) -> str:
    """The qualified name of a function, a class or a code object; of any other callable that of its type."""
    kind = type(called)
    if kind is BuiltinFunctionType:
        owner = called.__self__
        if owner is None or type(owner) is ModuleType:
            return str(called.__name__)
        return f"{qualname_of(owner if issubclass(type(owner), type) else type(owner))}.{called.__name__}"
    if kind is CodeType:
        return name_of(called)
    if kind in _METHODS:
        return str(called.__qualname__)
    if issubclass(kind, type):
        return str(qualname_of(called))
    return _name_in_library(called) or str(qualname_of(kind))


def _name_in_library(called: Any) -> str:
    """The symbol that a function of `ctypes` was looked up by; empty for anything else."""
    ctypes: Any = sys.modules.get("_ctypes")
    if ctypes is None or not any(base is ctypes.CFuncPtr for base in mro_of(type(called))):
        return ""
    try:
        name = object.__getattribute__(called, "__name__")
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def name_of(code: CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)
