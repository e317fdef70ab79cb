"""Count the kinds of objects that accumulate, by type (tensors in more detail)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.heap.gc_roots import is_ours
from pytest_leakcheck.attribution.heap.tensors import describe_tensor, is_tensor
from pytest_leakcheck.attribution.object_inspection import array_types, module_of_type, own_size, type_name
from pytest_leakcheck.model.culprit import Held

_MAX_KINDS: Final = 5
# Types of objects that only accompany other objects. They show little about the cause.
_AUXILIARY_TYPES: Final = (BuiltinFunctionType, CellType, FrameType, FunctionType, GeneratorType, MethodType)


def kinds_of(objects: Iterable[Any], iterations: int, least: float) -> tuple[Held, ...]:
    """Return the most frequent kinds of new objects.

    Builtin types are reported only if no other type is frequent.

    Args:
        objects: The tracked objects that were created in these iterations.
        iterations: The number of iterations.
        least: The minimum number per iteration for a kind to be reported. A kind with only one object is never
            reported.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    for one in objects:
        if type(one) not in _AUXILIARY_TYPES and not is_ours(one):
            found[kind_of(one)].append(one)
    often = [(name, some) for name, some in found.items() if len(some) >= max(2.0, least * iterations)]
    # Builtin objects that accompany objects of other types add no information, and the search itself creates some.
    own = [pair for pair in often if module_of_type(type(pair[1][0])) != "builtins"]
    often = sorted(own or often, key=lambda pair: (-len(pair[1]), pair[0]))
    arrays = array_types()
    return tuple(
        Held(name, len(some), f"{own_size(some[-1], some[-2], arrays):,} B each, in {iterations} iterations")
        for name, some in often[:_MAX_KINDS]
    )


def kind_of(one: Any) -> str:
    """Return the type name of an object.

    For a tensor, the shape, dtype, device and whether it has a graph are included.
    """
    return describe_tensor(one) if is_tensor(one) else type_name(one)
