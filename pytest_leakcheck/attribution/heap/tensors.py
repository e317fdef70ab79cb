"""Tensors of torch that are new: how much memory of a device they hold, and what the graph behind each one keeps."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from pytest_leakcheck.attribution.object_inspection import type_name
from pytest_leakcheck.model.culprit import Held

# A graph is followed through so many of its operations.
_MOST_NODES: Final = 10_000
_MOST_KINDS: Final = 5
_NEWEST: Final = 3
# How torch names what an operation has saved for its backward pass.
_SAVED: Final = "_saved_"


def is_tensor(one: Any) -> bool:
    """Whether it is a tensor or a parameter; exactly these two, since a proxy of one would do who knows what."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and type(one) in (torch.Tensor, torch.nn.Parameter)


def new_tensors() -> list[Any]:
    """Those that came since the collector froze the rest."""
    return [one for one in gc.get_objects() if is_tensor(one)]


def bytes_on_device(tensors: Iterable[Any]) -> int:
    """Bytes of their storages on anything but the CPU, each once."""
    return _bytes(one for one in tensors if one.device.type != "cpu")


def tensor_kinds(objects: Iterable[Any], iterations: int, least: float) -> tuple[Held, ...]:
    """The most frequent kinds of tensors, with what the graph of one of them keeps.

    Args:
        objects: What came in these iterations.
        iterations: How many there were.
        least: Fewer of a kind per iteration are not told.
    """
    found: dict[str, list[Any]] = {}
    for one in objects:
        # A view of a parameter takes nothing.
        if is_tensor(one) and not (one._base is not None and _is_parameter(one._base)):
            found.setdefault(describe_tensor(one), []).append(one)
    often = [pair for pair in found.items() if len(pair[1]) >= max(2.0, least * iterations)]
    often.sort(key=lambda pair: (-len(pair[1]) * _bytes(pair[1][-1:]), pair[0]))
    # Of a graph its last tensor is told: it keeps the others.
    kept = {name for name, some in often for other in often if other[0] != name and _keeps(other[1], some[-1])}
    rest = [pair for pair in often if pair[0] not in kept] or often
    return tuple(Held(name, len(some), describe_graph(some[-1])) for name, some in rest[:_MOST_KINDS])


def _keeps(tensors: Sequence[Any], other: Any) -> bool:
    """Whether the graph of one of the newest of these has made the other, or has saved it."""
    for tensor in tensors[-_NEWEST:]:
        if tensor.grad_fn is None:
            continue
        nodes = list(_nodes(tensor.grad_fn))
        if other.grad_fn is not None and other.grad_fn in nodes:
            return True
        place = other.untyped_storage().data_ptr()
        if any(one.untyped_storage().data_ptr() == place for node in nodes for one in _saved(node)):
            return True
    return False


def describe_tensor(tensor: Any) -> str:
    """Type, shape, element type, device, and whether it has a history."""
    graph = " with its graph" if tensor.grad_fn is not None else ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{type_name(tensor)} {tuple(tensor.shape)} {dtype} {tensor.device}{graph}"


def describe_graph(tensor: Any) -> str:
    """What the operations behind a tensor have saved for a backward pass; its own bytes where it has no history."""
    if tensor.grad_fn is None:
        return f"{_bytes([tensor]):,} B each"
    nodes = list(_nodes(tensor.grad_fn))
    # Parameters are the model's, graph or none; of what was computed, the graph may be all that keeps it.
    kept = {
        one.untyped_storage().data_ptr(): one for node in nodes for one in _saved(node) if not _is_parameter(one)
    }.values()
    shapes = Counter(f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in kept)
    most = ", ".join(f"{count} of {shape}" for shape, count in shapes.most_common(3))
    what = f" and {len(kept)} tensors of {_bytes(kept):,} B: {most}" if kept else ""
    return f"{nodes[0].name()}; its graph keeps {len(nodes)} operations{what}"


def _nodes(root: Any) -> Iterator[Any]:
    """Each operation once, from the last to the first."""
    seen, waiting = {root}, [root]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        yield node
        for following, _output in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _saved(node: Any) -> Iterator[Any]:
    for name in dir(node):
        if name.startswith(_SAVED):
            try:
                value = getattr(node, name)
            except RuntimeError:
                # A backward pass has freed it.
                return
            yield from (one for one in (value if isinstance(value, tuple) else (value,)) if is_tensor(one))


def _is_parameter(tensor: Any) -> bool:
    return bool(tensor.is_leaf and tensor.requires_grad)


def _bytes(tensors: Iterable[Any]) -> int:
    """Of their storages, each once; a wrapper of other tensors has none."""
    sizes: dict[int, int] = {}
    for one in tensors:
        try:
            storage = one.untyped_storage()
        except (NotImplementedError, RuntimeError):
            continue
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
