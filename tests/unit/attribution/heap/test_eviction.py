"""A function that removes entries from a container is found, and the bound is read from its source."""

from __future__ import annotations

import gc
import importlib
import selectors
from collections import OrderedDict, deque
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from pytest_leakcheck.attribution.heap.eviction import Eviction, find_eviction


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    copy(Path(__file__).with_name("sessions") / "program_that_evicts.py", tmp_path / "pruned_module.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.import_module("sys").modules, "pruned_module", raising=False)
    gc.unfreeze()
    return importlib.import_module("pruned_module")


def test_a_function_that_removes_entries_is_found_by_attribute_global_and_class(module: Any) -> None:
    cache, slotted = module.Cache(), module.Slotted()
    assert find_eviction(cache.entries) == Eviction("Cache.get()")
    assert find_eviction(slotted.entries) == Eviction("Slotted.drop()")
    assert find_eviction(module.POOL) == Eviction("take()")
    assert find_eviction(module.WAITING) == Eviction("keep()")


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


@pytest.mark.parametrize(("most", "bound"), [(9_000_000, 9_000_000), (11_000_000, 0)])
def test_a_bound_of_more_than_ten_million_is_none(
    module: Any, monkeypatch: pytest.MonkeyPatch, most: int, bound: int
) -> None:
    monkeypatch.setattr(module, "MOST", most)
    assert getattr(find_eviction(module.TABLE), "bound", 0) == bound


def test_a_function_that_removes_entries_from_another_container_does_not_bound_it(module: Any) -> None:
    module.keep([])
    assert find_eviction(module.LEFT) is None


def test_a_container_from_which_nothing_is_removed_has_none(module: Any) -> None:
    cache = module.Cache()
    assert find_eviction(cache.others) is find_eviction(module.LEFT) is None
    assert find_eviction(OrderedDict()) is find_eviction(deque([[]])) is None


def test_functions_of_the_standard_library_are_no_bound() -> None:
    with selectors.SelectSelector() as selector:
        assert find_eviction(vars(selector)["_fd_to_key"]) is None
