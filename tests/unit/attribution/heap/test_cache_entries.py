"""Objects that only a cache holds are counted; those to which anything else refers are not."""

from __future__ import annotations

import gc
import selectors
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pytest_leakcheck.attribution.heap.cache_entries import count_exclusive, find_eviction


class Page:
    __slots__ = ("__weakref__", "links", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.links = {"all": [text, object()]}


@pytest.fixture
def cache() -> Iterator[dict[str, object]]:
    """A cache that existed when all objects were frozen, with an old entry."""
    pages: dict[str, object] = {"old": Page("old")}
    gc.collect()
    gc.freeze()
    yield pages
    gc.unfreeze()


def test_what_is_kept_elsewhere_as_well_does_not_count(cache: dict[str, object]) -> None:
    page = Page("new")
    cache["new"] = page
    assert count_exclusive([cache]) == 0
    links = page.links
    del page
    assert count_exclusive([cache]) == 1, "only the page: its dict is kept, and so is the list in it"
    del links
    assert count_exclusive([cache]) == 3
    cache["cycle"] = cycle = [cache["new"]]
    cycle.append(cycle)
    del cycle
    assert count_exclusive([cache]) == 0, "freeing the cycle takes the collector"


CLASSES = """
from collections import OrderedDict

class Cache:
    def __init__(self):
        self.entries, self.others = OrderedDict(), []

    def get(self, key):
        self.entries.popitem(last=False)

class Slotted:
    __slots__ = ("entries",)

    def __init__(self):
        self.entries = {}

    def drop(self, key):
        del self.entries[key]

class Own(OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.popitem(last=False)

POOL, LEFT = {}, []

def take():
    POOL.pop(1)
"""


@pytest.fixture
def module() -> Any:
    module = ModuleType("pool")
    exec(CLASSES, vars(module))
    gc.unfreeze()
    return module


def test_a_function_that_removes_entries_is_found_by_attribute_global_and_class(module: Any) -> None:
    cache, slotted = module.Cache(), module.Slotted()
    assert find_eviction(cache.entries) == "Cache.get()"
    assert find_eviction(slotted.entries) == "Slotted.drop()"
    assert find_eviction(module.Own()) == "Own.__setitem__()"
    assert find_eviction(module.POOL) == "take()"


def test_a_container_from_which_nothing_is_removed_has_none(module: Any) -> None:
    cache = module.Cache()
    assert find_eviction(cache.others) == find_eviction(module.LEFT) == ""
    assert find_eviction(OrderedDict()) == find_eviction(deque([[]])) == ""


def test_functions_of_the_standard_library_are_no_bound() -> None:
    with selectors.SelectSelector() as selector:
        assert find_eviction(vars(selector)["_fd_to_key"]) == ""
