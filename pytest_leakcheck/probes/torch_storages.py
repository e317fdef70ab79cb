"""Count live storages (each the memory of one or more tensors) of torch on the CPU; imports torch.

``--leakcheck-vram=accounted`` reads them on machines without an accelerator.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_leakcheck.probes.device import Device


@dataclass(slots=True)
class _Storage:
    reference: weakref.ref[Any]
    size: int
    counted: int


class StorageAccount(TorchDispatchMode, Device):  # type: ignore[no-untyped-call]  # torch has no types here
    """The sum of bytes of live storages on the CPU, intercepted at the operations that create them.

    A storage counts once, from its creation until its release. The sum is exact for operations of
    this thread, including the backward pass. It leaves out storages of other threads, or that C++
    code creates without an operation. Each operation takes some tens of microseconds longer, and
    `torch.compile` falls back to eager execution. Subclasses can override `came`, called before a
    storage is added, and `went`, called after it is removed.
    """

    name = "cpu"
    kind = "accounted"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.live = 0
        self.highest = 0
        # By id. An id stays valid, because torch keeps the Python object of a storage as long as
        # the storage itself.
        self._known: dict[int, _Storage] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]  # as above

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If True, torch would hide `__torch_dispatch__` from its compiler by a wrapper, which costs
        # one more call per operation.
        return False

    def came(self, key: int, size: int) -> None:
        """Handle a new storage, whose key is unique until `went`.

        An exception here fails the operation that creates the storage.
        """

    def went(self, key: int, size: int) -> None:
        """Handle the release of a storage."""

    def open(self) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]  # as above

    def close(self) -> None:
        """Stop counting new storages; those that are live still count until they are released."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above

    def allocated(self) -> int:
        return self.live

    def peak(self) -> int:
        return self.highest

    def reset_peak(self) -> None:
        self.highest = self.live

    def pieces(self) -> dict[Hashable, int]:
        return {key: one.counted for key, one in list(self._known.items()) if one.counted}

    def describe(self) -> str:
        return f"live tensors of torch {torch.__version__} on the CPU, accounted"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _iterate_tensors(result):
            self._record_storage(tensor, args, kwargs)
        return result

    def _record_storage(self, tensor: torch.Tensor, args: Any, kwargs: Any) -> None:
        if tensor.device.type != "cpu":
            return
        storage = _storage_of(tensor)
        if storage is None:
            return
        size, key = storage.nbytes(), id(storage)
        known = self._known.get(key)
        if known is not None and known.reference() is storage:
            if size != known.size:
                self._resize(key, known, size)
            return
        # If an unknown storage is among the arguments, the operation has not created it: it works
        # in place or returns a view. The storage does not count, because no intercepted operation
        # created it (it may be older than `open`).
        given = (*_iterate_tensors(args), *_iterate_tensors(kwargs or {}))
        counted = 0 if any(_storage_of(one) is storage for one in given) else size
        self._add_bytes(key, counted)
        self._known[key] = _Storage(weakref.ref(storage, partial(self._forget, key)), size, counted)

    def _resize(self, key: int, known: _Storage, size: int) -> None:
        self._remove_bytes(key, known.counted)
        known.size, known.counted = size, 0
        self._add_bytes(key, size)
        known.counted = size

    def _forget(self, key: int, _gone: object) -> None:
        self._remove_bytes(key, self._known.pop(key).counted)

    def _add_bytes(self, key: int, size: int) -> None:
        if size:
            self.came(key, size)
        self.live += size
        self.highest = max(self.highest, self.live)

    def _remove_bytes(self, key: int, size: int) -> None:
        self.live -= size
        if size:
            self.went(key, size)


def _iterate_tensors(value: Any) -> Iterable[torch.Tensor]:
    """Yield tensors in an operation's results or arguments, also in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_tensors(item)


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage; None if it wraps other tensors, which count by themselves."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None
