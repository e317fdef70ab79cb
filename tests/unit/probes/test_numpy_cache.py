"""Numpy's cache of freed blocks is filled before each series, but only once in a process before screens."""

from __future__ import annotations

from math import inf

import pytest

from pytest_leakcheck.probes import native_heap
from pytest_leakcheck.probes.native_heap import Heap

pytest.importorskip("numpy")


def test_screens_share_what_one_of_them_has_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[object] = []
    monkeypatch.setattr(native_heap, "_fill_numpy_cache", filled.append)
    monkeypatch.setattr(native_heap, "_FILLED", set())
    heap = Heap()
    heap.open()
    for seconds, times in ((inf, 1), (inf, 1), (0.001, 2), (inf, 2), (0.1, 3)):
        heap.start(seconds)
        assert len(filled) == times
