"""Count the kinds of objects that accumulate, by type (tensors in more detail)."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Iterable
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.heap.gc_roots import is_ours
from pytest_leakcheck.attribution.heap.growing_containers import Growing
from pytest_leakcheck.attribution.heap.tensors import describe_tensor, is_tensor
from pytest_leakcheck.attribution.object_inspection import (
    array_types,
    container_kind,
    last_entries,
    module_of_type,
    own_size,
    payload,
    type_name,
)
from pytest_leakcheck.model.culprit import Held

_MAX_KINDS: Final = 5
# Types of objects that only accompany other objects. They show little about the cause.
AUXILIARY_TYPES: Final = (BuiltinFunctionType, CellType, FrameType, FunctionType, MethodType, weakref.ReferenceType)


def accompanies(one: object) -> bool:
    """Return whether an object only accompanies other objects: containers, functions, frames."""
    return container_kind(one) is not None or type(one) in (tuple, *AUXILIARY_TYPES)


def kind_of_entries(growing: Growing, iterations: int, *, of_bytes: bool) -> Held | None:
    """Return the kind of the entries that a container has gained; None if their type shows little about them.

    With `of_bytes` (bytes or blocks are retained), the part of an entry that holds most of its bytes counts, such as a
    bytearray in a list. Otherwise an entry that is a container only accompanies other objects.
    """
    newest = [key if value is None else value for key, value in last_entries(growing.holder, 2)]
    entry, beside = newest[0], newest[-1] if len(newest) > 1 else None
    arrays = array_types()
    size = own_size(entry, beside, arrays)
    if of_bytes:
        entry, size = payload(entry, beside, arrays)
    elif accompanies(entry):
        return None
    name = arrays.get(id(type(entry)), kind_of(entry))
    return Held(name, growing.gained, f"{size:,} B each, in {iterations} iterations")


def kinds_of(objects: Iterable[Any], iterations: int, least: float, least_bytes: float = 0.0) -> tuple[Held, ...]:
    """Return the most frequent kinds of new tracked objects; if bytes are retained, those that hold the most first.

    Builtin types are reported only if no other type is frequent, and a kind with only one object never. `least` is the
    minimum number of a kind per iteration, and `least_bytes` the minimum of what all its objects hold together.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    everything = list(objects)
    # The lists and dicts of the search's own objects have builtin types.
    parts_of_ours = set(map(id, gc.get_referents(*filter(is_ours, everything))))
    for one in everything:
        if type(one) not in AUXILIARY_TYPES and not is_ours(one) and id(one) not in parts_of_ours:
            found[kind_of(one)].append(one)
    often = [(name, some) for name, some in found.items() if len(some) >= max(2.0, least * iterations)]
    # Builtin objects that accompany objects of other types add no information, and the search itself creates some.
    own = [pair for pair in often if module_of_type(type(pair[1][0])) != "builtins"]
    often = sorted(own or often, key=lambda pair: (-len(pair[1]), pair[0]))
    arrays = array_types()
    sized = [(name, len(some), own_size(some[-1], some[-2], arrays)) for name, some in often]
    if least_bytes:
        sized.sort(key=lambda kind: -kind[1] * kind[2])
    return tuple(
        Held(name, count, f"{size:,} B each, in {iterations} iterations")
        for name, count, size in sized
        if count * size >= least_bytes
    )[:_MAX_KINDS]


def kind_of(one: Any) -> str:
    """Return the type name of an object; for a tensor, also the shape, dtype, device and whether it has a graph."""
    return describe_tensor(one) if is_tensor(one) else type_name(one)
