"""Describe new torch tensors, their memory, and what their graphs keep.

The graph of a tensor is its autograd graph: the operations that computed the tensor, with the tensors that they have
saved for a backward pass.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pytest_leakcheck.attribution.object_inspection import type_name
from pytest_leakcheck.model.culprit import Held

# Maximum number of operations to follow in a graph.
_MAX_GRAPH_NODES: Final = 10_000
_MAX_KINDS: Final = 5
# Number of newest tensors of each kind whose graphs are inspected.
_NEWEST_TENSORS: Final = 3
# Prefix of the attributes in which torch keeps what an operation has saved for its backward pass.
_SAVED_PREFIX: Final = "_saved_"


def is_tensor(one: Any) -> bool:
    """Return whether an object is a tensor or a parameter, not of a derived type: a proxy may run any code."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and type(one) in (torch.Tensor, torch.nn.Parameter)


def tensor_kinds(objects: Iterable[Any], iterations: int, least: float) -> tuple[Held, ...]:
    """Return the kinds of tensors that hold the most bytes, with a description of what their graphs keep.

    `least` is the minimum number per iteration for a kind to be reported. A kind with only one tensor never is.
    """
    found: dict[str, list[Any]] = {}
    for one in objects:
        # A view of a parameter takes no memory.
        if is_tensor(one) and not (one._base is not None and _is_parameter(one._base)):
            found.setdefault(describe_tensor(one), []).append(one)
    often = [pair for pair in found.items() if len(pair[1]) >= max(2.0, least * iterations)]
    often.sort(key=lambda pair: (-len(pair[1]) * _storage_bytes(pair[1][-1:]), pair[0]))
    # Report only the last tensor of a graph, because it keeps the others.
    kept = {name for name, some in often for other in often if other[0] != name and _graph_keeps(other[1], some[-1])}
    rest = [pair for pair in often if pair[0] not in kept] or often
    return tuple(Held(name, len(some), describe_graph(some[-1])) for name, some in rest[:_MAX_KINDS])


def _graph_keeps(tensors: Sequence[Any], other: Any) -> bool:
    """Return whether `other` was computed or saved by the autograd graph of one of the newest tensors."""
    for tensor in tensors[-_NEWEST_TENSORS:]:
        if tensor.grad_fn is None:
            continue
        nodes = list(_list_nodes(tensor.grad_fn))
        if other.grad_fn is not None and other.grad_fn in nodes:
            return True
        place = other.untyped_storage().data_ptr()
        if any(one.untyped_storage().data_ptr() == place for node in nodes for one in _list_saved_tensors(node)):
            return True
    return False


def describe_tensor(tensor: Any) -> str:
    """Describe a tensor by type, shape, dtype, device, and whether it has a graph."""
    graph = " with its graph" if tensor.grad_fn is not None else ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{type_name(tensor)} {tuple(tensor.shape)} {dtype} {tensor.device}{graph}"


def describe_graph(tensor: Any) -> str:
    """Describe what the graph of a tensor has saved for a backward pass; without a graph, return its bytes."""
    if tensor.grad_fn is None:
        return f"{_storage_bytes([tensor]):,} B each"
    nodes = list(_list_nodes(tensor.grad_fn))
    # Leave out parameters, because the model keeps them in any case. A computed tensor may be kept by the graph alone.
    kept = {
        one.untyped_storage().data_ptr(): one
        for node in nodes
        for one in _list_saved_tensors(node)
        if not _is_parameter(one)
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
            yield from (one for one in (value if isinstance(value, tuple) else (value,)) if is_tensor(one))


def _is_parameter(tensor: Any) -> bool:
    return bool(tensor.is_leaf and tensor.requires_grad)


def _storage_bytes(tensors: Iterable[Any]) -> int:
    """Sum the bytes of the storages, each counted once; a tensor without one, such as a wrapper, adds nothing."""
    sizes: dict[int, int] = {}
    for one in tensors:
        try:
            storage = one.untyped_storage()
        except (NotImplementedError, RuntimeError):
            continue
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
