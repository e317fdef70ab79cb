"""Live storages of torch's tensors, counted as operations make them. Loaded only where torch is, and accounting was asked for."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(slots=True)
class _Storage:
    """One that is known: how large it is, and how much of it counts."""

    reference: weakref.ref[Any]
    size: int
    counted: int


class StorageAccount(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Sums the bytes of storages on the CPU, from the operation that makes each to its end.

    Exact for what operations of this thread make, the backward pass included; what other threads make, and what C++ makes
    without an operation, is not seen. A storage counts once, whatever views there are of it. Each operation takes some
    tens of microseconds more; `torch.compile` falls back to plain execution under it.

    Subclass it to be told of each storage: `came` before it counts, `went` after.

    Attributes:
        live: Bytes now.
        highest: The most since `reset_highest`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.live = 0
        self.highest = 0
        # By identity: torch keeps the object of a storage as long as the storage itself.
        self._known: dict[int, _Storage] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)  # type: ignore[no-untyped-call]  # as above

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Torch would else wrap each operation once more, to keep its compiler away from what is done here.
        return False

    def reset_highest(self) -> None:
        """Set the mark back to what is live now."""
        self.highest = self.live

    def came(self, key: int, size: int) -> None:
        """A storage of so many bytes is there; no other has this key until it is gone. What is raised here is what the
        operation fails with."""

    def went(self, key: int, size: int) -> None:
        """It is gone."""

    def begin(self) -> None:
        """From now on, in this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]  # as above

    def end(self) -> None:
        """What is live counts on until it is gone; nothing new does."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._take(tensor, args, kwargs)
        return result

    def _take(self, tensor: torch.Tensor, args: Any, kwargs: Any) -> None:
        if tensor.device.type != "cpu":
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # A wrapper of other tensors, which come by themselves.
            return
        size, key = storage.nbytes(), id(storage)
        known = self._known.get(key)
        if known is not None and known.reference() is storage:
            if size != known.size:
                self._resize(key, known, size)
            return
        # Made before this began: what is done to it in place makes nothing new.
        counted = 0 if any(storage is one for one in _storages(args, kwargs)) else size
        self._count(key, counted)
        self._known[key] = _Storage(weakref.ref(storage, partial(self._forget, key)), size, counted)

    def _resize(self, key: int, known: _Storage, size: int) -> None:
        self._discount(key, known.counted)
        known.size, known.counted = size, 0
        self._count(key, size)
        known.counted = size

    def _forget(self, key: int, _gone: object) -> None:
        self._discount(key, self._known.pop(key).counted)

    def _count(self, key: int, size: int) -> None:
        if size:
            self.came(key, size)
        self.live += size
        self.highest = max(self.highest, self.live)

    def _discount(self, key: int, size: int) -> None:
        self.live -= size
        if size:
            self.went(key, size)

    def pieces(self) -> dict[int, int]:
        """The bytes of each storage that counts, by identity."""
        return {key: one.counted for key, one in list(self._known.items()) if one.counted}


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    """The tensors that an operation gives or takes: one, or some in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)


def _storages(args: Any, kwargs: Any) -> Iterable[torch.UntypedStorage]:
    for tensor in (*_tensors(args), *_tensors(kwargs or {})):
        try:
            yield tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            continue
