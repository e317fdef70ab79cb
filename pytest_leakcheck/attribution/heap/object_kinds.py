"""Count the kinds of objects that accumulate, by type.

Tensors of torch are described with shape, bytes and what their graphs keep. The graph of a tensor
is its autograd graph: the operations that computed the tensor, with the tensors that they have
saved for a backward pass.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CellType, FrameType, FunctionType, MethodType
from typing import Any, Final

from pytest_leakcheck.attribution import inspection
from pytest_leakcheck.attribution.heap.growing_containers import LEAST, GrowingContainer
from pytest_leakcheck.attribution.heap.reference_paths import is_ours
from pytest_leakcheck.model.culprit import Remainder

_MAX_KINDS: Final = 5
# The most operations to follow in a graph, and the newest tensors of each kind whose graphs are
# inspected.
_MAX_GRAPH_NODES: Final = 10_000
_NEWEST_TENSORS: Final = 3
# The description of a tensor that keeps its graph ends so.
WITH_GRAPH: Final = " with its graph"
# torch keeps what an operation has saved for its backward pass in these attributes.
_SAVED_PREFIX: Final = "_saved_"
# Types of objects that only accompany other objects, so that they show little about the cause.
AUXILIARY_TYPES: Final = (
    BuiltinFunctionType,
    CellType,
    FrameType,
    FunctionType,
    MethodType,
    weakref.ReferenceType,
)


def accompanies(obj: object) -> bool:
    """Return whether an object only accompanies other objects: containers, functions, frames."""
    return inspection.container_kind(obj) is not None or type(obj) in (tuple, *AUXILIARY_TYPES)


def kind_of_entries(
    growing: GrowingContainer, iterations: int, *, of_bytes: bool
) -> Remainder | None:
    """Return the kind of the entries that a container has gained; None if the type shows little.

    With `of_bytes`, the part of an entry that holds most of its bytes counts, such as a bytearray
    in a list.
    """
    newest = [
        key if value is None else value for key, value in inspection.last_entries(growing.holder, 2)
    ]
    entry, beside = newest[0], newest[-1] if len(newest) > 1 else None
    size = inspection.own_size(entry, beside)
    if of_bytes:
        entry, size = inspection.payload(entry, beside)
    elif accompanies(entry):
        return None
    return Remainder(kind_of(entry), growing.gained, f"{size:,} B each, in {iterations} iterations")


def kinds_of(
    objects: Iterable[Any],
    iterations: int,
    least: float,
    least_bytes: float = 0.0,
    more: Mapping[int, int] | None = None,
) -> tuple[Remainder, ...]:
    """Return the most frequent kinds of new tracked objects; builtin types only if no other is.

    `least` is the minimum number of a kind per iteration. With a minimum of bytes, those that hold
    the most are first, and of objects that share most of their bytes only what has them. `more`: as
    in `SearchTarget`.
    """
    everything = list(objects)
    # The lists and dicts of the search's own objects have builtin types.
    parts_of_ours = set(map(id, gc.get_referents(*filter(is_ours, everything))))
    others = (
        obj
        for obj in everything
        if type(obj) not in AUXILIARY_TYPES and not is_ours(obj) and id(obj) not in parts_of_ours
    )
    often = _list_frequent(others, kind_of, least * iterations)
    often = [
        (name, some)
        for name, some in often
        if more is None or LEAST * len(some) <= more.get(id(type(some[0])), 0)
    ]
    # Builtin objects that accompany objects of other types add no information, and the search
    # itself creates some.
    own = [pair for pair in often if inspection.module_of_type(type(pair[1][0])) != "builtins"]
    often = sorted(own or often, key=lambda pair: (-len(pair[1]), pair[0]))
    found: dict[int, tuple[str, int, int]] = {}
    for name, some in often:
        part, size = some[-1], inspection.own_size(some[-1], some[-2])
        if least_bytes:
            part, size = inspection.payload(some[-1], some[-2])
        if len(some) * size >= least_bytes:
            found.setdefault(id(part), (kind_of(part) if least_bytes else name, len(some), size))
    sized = sorted(found.values(), key=lambda kind: -kind[1] * kind[2] if least_bytes else 0)[
        :_MAX_KINDS
    ]
    return tuple(
        Remainder(name, count, f"{size:,} B each, in {iterations} iterations")
        for name, count, size in sized
    )


def tensor_kinds(objects: Iterable[Any], iterations: int, least: float) -> tuple[Remainder, ...]:
    """Return the largest kinds of tensors, and what their graphs keep; `least` as in `kinds_of`."""
    # A view of a parameter takes no memory.
    tensors = (
        tensor
        for tensor in objects
        if is_tensor(tensor) and not (tensor._base is not None and _is_parameter(tensor._base))
    )
    often = _list_frequent(tensors, _describe_tensor, least * iterations)
    often.sort(key=lambda pair: (-len(pair[1]) * _storage_bytes(pair[1][-1:]), pair[0]))
    # Report only the last tensor of a graph, because it keeps the others.
    kept = {
        name
        for name, some in often
        for pair in often
        if pair[0] != name and _graph_keeps(pair[1], some[-1])
    }
    rest = [pair for pair in often if pair[0] not in kept] or often
    return tuple(
        Remainder(name, len(some), _describe_graph(some[-1])) for name, some in rest[:_MAX_KINDS]
    )


def _list_frequent(
    objects: Iterable[Any], describe: Callable[[Any], str], least: float
) -> list[tuple[str, list[Any]]]:
    found: dict[str, list[Any]] = defaultdict(list)
    for obj in objects:
        found[describe(obj)].append(obj)
    return [(name, some) for name, some in found.items() if len(some) >= max(2.0, least)]


def kind_of(obj: Any) -> str:
    """Return an object's type; for a tensor, also shape, dtype, device and if it has a graph."""
    if is_tensor(obj):
        return _describe_tensor(obj)
    return inspection.array_types().get(id(type(obj)), inspection.type_name(obj))


def is_tensor(obj: Any) -> bool:
    """Return whether `obj` is a tensor or parameter of no derived type, which may run any code."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and type(obj) in (torch.Tensor, torch.nn.Parameter)


def _graph_keeps(tensors: Sequence[Any], other: Any) -> bool:
    """Return whether the graph of one of the newest tensors has computed or saved `other`."""
    for tensor in tensors[-_NEWEST_TENSORS:]:
        if tensor.grad_fn is None:
            continue
        nodes = list(_list_nodes(tensor.grad_fn))
        if other.grad_fn is not None and other.grad_fn in nodes:
            return True
        place = other.untyped_storage().data_ptr()
        if any(
            saved.untyped_storage().data_ptr() == place
            for node in nodes
            for saved in _list_saved_tensors(node)
        ):
            return True
    return False


def _describe_tensor(tensor: Any) -> str:
    """Describe a tensor by type, shape, dtype, device, and whether it has a graph."""
    graph = WITH_GRAPH if tensor.grad_fn is not None else ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{inspection.type_name(tensor)} {tuple(tensor.shape)} {dtype} {tensor.device}{graph}"


def _describe_graph(tensor: Any) -> str:
    """Describe what a tensor's graph has saved for a backward pass; without a graph, its bytes."""
    if tensor.grad_fn is None:
        return f"{_storage_bytes([tensor]):,} B each"
    nodes = list(_list_nodes(tensor.grad_fn))
    # Leave out parameters, because the model keeps them in any case. A computed tensor may be kept
    # by the graph alone.
    kept = {
        saved.untyped_storage().data_ptr(): saved
        for node in nodes
        for saved in _list_saved_tensors(node)
        if not _is_parameter(saved)
    }.values()
    shapes = Counter(f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in kept)
    most = ", ".join(f"{count} of {shape}" for shape, count in shapes.most_common(3))
    what = f" and {len(kept)} tensors of {_storage_bytes(kept):,} B: {most}" if kept else ""
    return f"{nodes[0].name()}; its graph keeps {len(nodes)} operations{what}"


def _list_nodes(root: Any) -> Iterator[Any]:
    """Yield each operation of a graph once, beginning with the last one."""
    seen, waiting = {root}, [root]
    while waiting and len(seen) < _MAX_GRAPH_NODES:
        node = waiting.pop()
        yield node
        for following, _output in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _list_saved_tensors(node: Any) -> Iterator[Any]:
    for name in dir(node):
        if name.startswith(_SAVED_PREFIX):
            try:
                value = getattr(node, name)
            except RuntimeError:
                # A backward pass has freed the saved tensors.
                return
            yield from (
                one for one in (value if isinstance(value, tuple) else (value,)) if is_tensor(one)
            )


def _is_parameter(tensor: Any) -> bool:
    return bool(tensor.is_leaf and tensor.requires_grad)


def _storage_bytes(tensors: Iterable[Any]) -> int:
    """Sum the bytes of storages, each once; a tensor without one, as a wrapper, adds nothing."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            continue
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
