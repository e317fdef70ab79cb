"""A function that removes entries from a container is found, and the bound is read from its source."""

from __future__ import annotations

import gc
import importlib
import selectors
import textwrap
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.attribution.heap.eviction import Eviction, find_eviction

MODULE = '''
    from collections import OrderedDict

    MOST = 300
    POOL, LEFT, TABLE = {}, [], {}

    def take():
        POOL.pop(1)

    def note(key, value):
        if len(TABLE) >= MOST:
            TABLE.clear()
        TABLE[key] = value

    class Cache:
        def __init__(self):
            self.entries, self.others, self.ttl = OrderedDict(), [], 60

        def get(self, key, now):
            if now - self.entries[key] > self.ttl:
                self.entries.popitem(last=False)

    class Shared:
        kept, most = [], 20

        @classmethod
        def put(cls, value):
            cls.kept.append(value)
            if cls.most < len(cls.kept):
                del cls.kept[0]

    class Slotted:
        __slots__ = ("entries",)

        def __init__(self):
            self.entries = {}

        def drop(self, key):
            del self.entries[key]

    class Own(OrderedDict):
        limit = 40

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            while len(self) > self.limit + self.limit * 0.5:
                self.popitem(last=False)

    class Counted:
        """Its bound is a local variable, and it counts its entries itself."""

        def __init__(self):
            self.__data, self.__size, self.__most = {}, 0, 128

        def put(self, key, value):
            most = self.__most
            while self.__size + 1 > most:
                self.pop_oldest()
            self.__data[key] = value
            self.__size += 1

        def pop_oldest(self):
            self.__data.pop(next(iter(self.__data)))
            self.__size -= 1
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "pruned_module.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.import_module("sys").modules, "pruned_module", raising=False)
    gc.unfreeze()
    return importlib.import_module("pruned_module")


def test_a_function_that_removes_entries_is_found_by_attribute_global_and_class(module: Any) -> None:
    cache, slotted = module.Cache(), module.Slotted()
    assert find_eviction(cache.entries) == Eviction("Cache.get()")
    assert find_eviction(slotted.entries) == Eviction("Slotted.drop()")
    assert find_eviction(module.POOL) == Eviction("take()")


def test_the_bound_is_the_number_with_which_it_compares_the_length(module: Any) -> None:
    counted = module.Counted()
    counted.put(1, 1)
    assert find_eviction(vars(counted)["_Counted__data"]) == Eviction("Counted.put()", 128)
    assert find_eviction(module.Own()) == Eviction("Own.__setitem__()", 60)
    assert find_eviction(module.Shared.kept) == Eviction("Shared.put()", 20)
    assert find_eviction(module.TABLE) == Eviction("note()", 300)


def test_a_bound_that_is_exceeded_is_none(module: Any) -> None:
    module.TABLE |= dict.fromkeys(range(301))
    assert find_eviction(module.TABLE) is None
    own = module.Own()
    dict.update(own, dict.fromkeys(range(61)))
    assert find_eviction(own) == Eviction("Own.__setitem__()")


def test_a_container_from_which_nothing_is_removed_has_none(module: Any) -> None:
    cache = module.Cache()
    assert find_eviction(cache.others) is find_eviction(module.LEFT) is None
    assert find_eviction(OrderedDict()) is find_eviction(deque([[]])) is None


def test_functions_of_the_standard_library_are_no_bound() -> None:
    with selectors.SelectSelector() as selector:
        assert find_eviction(vars(selector)["_fd_to_key"]) is None
