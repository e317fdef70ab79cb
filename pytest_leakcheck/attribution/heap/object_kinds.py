"""What kinds of objects there are more and more of: by type, tensors by shape, dtype and device too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution.heap.gc_roots import is_ours
from pytest_leakcheck.attribution.heap.tensors import describe_tensor, is_tensor
from pytest_leakcheck.attribution.object_inspection import array_types, module_of_type, own_size, type_name
from pytest_leakcheck.model.culprit import Held

_MOST: Final = 5
# They come with other things, and say little.
_MEANS: Final = (BuiltinFunctionType, CellType, FrameType, FunctionType, GeneratorType, MethodType)


def kinds_of(objects: Iterable[Any], iterations: int, least: float) -> tuple[Held, ...]:
    """The most frequent ones; what a program defines itself before builtin types.

    Args:
        objects: What the collector tracks and came in these iterations.
        iterations: How many there were.
        least: Fewer of a kind per iteration are not told.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    for one in objects:
        if type(one) not in _MEANS and not is_ours(one):
            found[kind_of(one)].append(one)
    often = [(name, some) for name, some in found.items() if len(some) >= max(2.0, least * iterations)]
    # Builtin ones that come with a program's own say nothing more, and the search makes some itself.
    own = [pair for pair in often if module_of_type(type(pair[1][0])) != "builtins"]
    often = sorted(own or often, key=lambda pair: (-len(pair[1]), pair[0]))
    arrays = array_types()
    return tuple(
        Held(name, len(some), f"{own_size(some[-1], some[-2], arrays):,} B each, in {iterations} iterations")
        for name, some in often[:_MOST]
    )


def kind_of(one: Any) -> str:
    """The name of its type; of a tensor with shape, element type and device, and whether it has a history."""
    return describe_tensor(one) if is_tensor(one) else type_name(one)
