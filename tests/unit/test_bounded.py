from __future__ import annotations

import functools
import gc
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from pytest_leakcheck.attribution.bounded import BoundedOwners

pytestmark = pytest.mark.usefixtures("frozen")

# So many that no cache of the interpreter or of another test gains more in the meantime.
MANY = 2000


def test_an_lru_cache_that_fills_up_is_named_until_it_is_full() -> None:
    @functools.lru_cache(2 * MANY)
    def load(index: int) -> int:
        return index

    load(-1)
    owners = BoundedOwners()
    assert "load" not in owners.filling("heap", 1, 1)
    for index in range(MANY):
        load(index)
    assert owners.filling("heap", 1, 1) == (
        "lru_cache of test_an_lru_cache_that_fills_up_is_named_until_it_is_full.<locals>.load: 2001 of 4000"
    )
    for index in range(3 * MANY):
        load(index)
    assert "load" not in owners.filling("heap", 1, 1)


def test_a_cache_that_the_program_has_frozen_is_named() -> None:
    @functools.lru_cache(2 * MANY)
    def load(index: int) -> int:
        return index

    gc.freeze()
    frozen = gc.get_freeze_count()
    owners = BoundedOwners()
    assert gc.get_freeze_count() >= frozen
    for index in range(MANY):
        load(index)
    assert "load: 2000 of 4000" in owners.filling("heap", 1, 1)


def test_a_deque_with_a_bound_is_named_also_when_it_is_new() -> None:
    owners = BoundedOwners()
    recent: deque[int] = deque(range(MANY), maxlen=2 * MANY)
    assert owners.filling("heap", 1, 1) == "deque(maxlen): 2000 of 4000"
    recent.extend(range(MANY))
    assert "deque" not in owners.filling("heap", 1, 1)


def test_what_has_no_bound_explains_nothing() -> None:
    @functools.lru_cache(None)
    def load(index: int) -> int:
        return index

    endless: deque[int] = deque()
    owners = BoundedOwners()
    for index in range(MANY):
        load(index)
    endless.extend(range(MANY))
    assert owners.filling("heap", 1, 1) == ""


def test_what_stands_still_explains_nothing() -> None:
    half_full: deque[int] = deque(range(MANY), maxlen=2 * MANY)
    owners = BoundedOwners()
    assert owners.filling("heap", 1, 1) == ""
    assert len(half_full) == MANY


def test_an_executor_below_its_workers_is_named() -> None:
    held = threading.Event()
    with ThreadPoolExecutor(4) as executor:
        owners = BoundedOwners()
        for _ in range(3):
            executor.submit(held.wait)
        assert owners.filling("thread", 3, 3) == "ThreadPoolExecutor: 3 of 4"
        executor.submit(held.wait)
        assert owners.filling("heap", 1, 1) == ""
        held.set()


def test_an_owner_that_is_gone_is_forgotten() -> None:
    gone: deque[int] = deque(maxlen=2 * MANY)
    owners = BoundedOwners()
    gone.extend(range(MANY))
    del gone
    assert owners.filling("heap", 1, 1) == ""


def test_an_owner_must_have_taken_in_half_of_what_grew() -> None:
    owners = BoundedOwners()
    made = [deque([object()], maxlen=50) for _ in range(20)]
    # Each of them gained one: they multiply, and that is no filling up.
    assert owners.filling("fd", 20, 20) == ""
    one: deque[object] = deque((object() for _ in range(20)), maxlen=50)
    assert owners.filling("fd", 20, 20) == "deque(maxlen): 20 of 50"
    assert len(made) == 20
    assert len(one) == 20


def test_an_owner_must_be_able_to_hold_it() -> None:
    owners = BoundedOwners()
    words: deque[str] = deque(("word" for _ in range(20)), maxlen=50)
    assert owners.filling("thread", 20, 20) == ""
    assert owners.filling("heap", 20, 20) == "deque(maxlen): 20 of 50"
    assert len(words) == 20


def test_an_owner_that_took_in_one_explains_no_growth_of_memory_that_goes_on() -> None:
    owners = BoundedOwners()
    one: deque[object] = deque([object()], maxlen=50)
    assert owners.filling("heap", 10**6, 200) == ""
    one.extend(object() for _ in range(49 - 1))
    assert owners.filling("heap", 10**6, 98) == "deque(maxlen): 49 of 50"
    assert owners.filling("heap", 10**6, 100) == ""


class BlockValuesRefs:
    """As pandas' class of that name, whose lists of views are cleared of the dead ones now and then."""

    def __init__(self) -> None:
        self.referenced_blocks: list[object] = []
        self.clear_counter = 500


def test_references_to_views_that_pandas_clears_out_later_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas._libs.internals", SimpleNamespace(BlockValuesRefs=BlockValuesRefs))
    column = BlockValuesRefs()
    owners = BoundedOwners()
    assert owners.filling("object", 200, 200) == ""
    column.referenced_blocks.extend(object() for _ in range(180))
    assert owners.filling("object", 200, 200) == "pandas' references to views: 180 of 500"
    # A leak of more than that, and one of bytes, is not explained by them.
    assert owners.filling("object", 400, 200) == ""
    assert owners.filling("heap", 200, 200) == ""
