"""The cache of freed blocks, filled and taken out by literal `malloc` and `free`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_leakcheck.probes import native_heap


def test_an_interrupt_while_blocks_are_taken_out_frees_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    alive, calls = set[int](), [0]

    def malloc(_size: int) -> int:
        calls[0] += 1
        if calls[0] == interrupted_at:
            raise KeyboardInterrupt
        alive.add(calls[0])
        return calls[0]

    def free(block: int) -> None:
        # Raises KeyError for one that is not allocated; a null pointer is nothing.
        if block:
            alive.remove(block)

    monkeypatch.setattr(native_heap, "_count_kept", lambda *_of: 2)
    cache = native_heap._ThreadCache(SimpleNamespace(malloc=malloc, free=free), lambda: 0)
    interrupted_at = 0
    cache.fill()
    count = calls[0]
    interrupted_at = count + count // 2
    with pytest.raises(KeyboardInterrupt):
        cache.take()
    assert len(alive) == count // 2 - 1
    cache.fill()
    assert not alive
    cache.fill()
    assert (len(alive), calls[0]) == (0, interrupted_at + count)
