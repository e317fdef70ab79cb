from __future__ import annotations

import functools
import gc
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

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
    assert "load" not in owners.filling("heap", 1)
    for index in range(MANY):
        load(index)
    assert owners.filling("heap", 1) == (
        "lru_cache of test_an_lru_cache_that_fills_up_is_named_until_it_is_full.<locals>.load: 2001 of 4000"
    )
    for index in range(3 * MANY):
        load(index)
    assert "load" not in owners.filling("heap", 1)


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
    assert "load: 2000 of 4000" in owners.filling("heap", 1)


def test_a_deque_with_a_bound_is_named_also_when_it_is_new() -> None:
    owners = BoundedOwners()
    recent: deque[int] = deque(range(MANY), maxlen=2 * MANY)
    assert owners.filling("heap", 1) == "deque(maxlen): 2000 of 4000"
    recent.extend(range(MANY))
    assert "deque" not in owners.filling("heap", 1)


def test_what_has_no_bound_explains_nothing() -> None:
    @functools.lru_cache(None)
    def load(index: int) -> int:
        return index

    endless: deque[int] = deque()
    owners = BoundedOwners()
    for index in range(MANY):
        load(index)
    endless.extend(range(MANY))
    assert owners.filling("heap", 1) == ""


def test_what_stands_still_explains_nothing() -> None:
    half_full: deque[int] = deque(range(MANY), maxlen=2 * MANY)
    owners = BoundedOwners()
    assert owners.filling("heap", 1) == ""
    assert len(half_full) == MANY


def test_an_executor_below_its_workers_is_named() -> None:
    held = threading.Event()
    with ThreadPoolExecutor(4) as executor:
        owners = BoundedOwners()
        for _ in range(3):
            executor.submit(held.wait)
        assert owners.filling("thread", 3) == "ThreadPoolExecutor: 3 of 4"
        executor.submit(held.wait)
        assert owners.filling("heap", 1) == ""
        held.set()


def test_an_owner_that_is_gone_is_forgotten() -> None:
    gone: deque[int] = deque(maxlen=2 * MANY)
    owners = BoundedOwners()
    gone.extend(range(MANY))
    del gone
    assert owners.filling("heap", 1) == ""


def test_an_owner_must_have_taken_in_half_of_what_grew() -> None:
    owners = BoundedOwners()
    made = [deque([object()], maxlen=50) for _ in range(20)]
    # Each of them gained one: they multiply, and that is no filling up.
    assert owners.filling("fd", 20) == ""
    one: deque[object] = deque((object() for _ in range(20)), maxlen=50)
    assert owners.filling("fd", 20) == "deque(maxlen): 20 of 50"
    assert len(made) == 20
    assert len(one) == 20


def test_an_owner_must_be_able_to_hold_it() -> None:
    owners = BoundedOwners()
    words: deque[str] = deque(("word" for _ in range(20)), maxlen=50)
    assert owners.filling("thread", 20) == ""
    assert owners.filling("heap", 20) == "deque(maxlen): 20 of 50"
    assert len(words) == 20
