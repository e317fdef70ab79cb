"""What a known cache gains in a screen is counted exactly: not less than it holds if full, and never what is kept beside it."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator

import pytest

from pytest_leakcheck.runner.bounded_caches import BoundedOwners, keep_owners
from pytest_leakcheck.runner.known_caches import KnownCaches

BOUND = 4


@pytest.fixture
def load() -> Iterator[Callable[[object], list[object]]]:
    """A full cache that an earlier measurement has found, and that existed when all objects were frozen."""

    @functools.lru_cache(BOUND)
    def load(key: object) -> list[object]:
        return [{"of": [key]}]

    for number in range(BOUND):
        load(-number)
    BoundedOwners()
    keep_owners()
    yield load
    gc.unfreeze()


def screened() -> KnownCaches:
    caches = KnownCaches()
    gc.collect()
    gc.freeze()
    return caches


def test_the_objects_of_new_entries_count(load: Callable[[object], object]) -> None:
    caches = screened()
    load("warm-up")
    caches.note()
    assert caches.gains() == {}
    load("a")
    load("b")
    # The first key has pushed out a frozen entry, and a list, a dict and a list have taken its place.
    assert caches.gains() == {"object": 6}
    caches.note()
    load("c")
    assert caches.gains() == {"object": 3}


def test_entries_that_push_out_other_new_ones_gain_nothing(load: Callable[[object], object]) -> None:
    caches = screened()
    for number in range(BOUND):
        load(f"warm-up {number}")
    caches.note()
    for number in range(3 * BOUND):
        load(number)
    assert caches.gains() == {}


def test_what_is_kept_beside_the_cache_does_not_count(load: Callable[[object], list[object]]) -> None:
    caches = screened()
    caches.note()
    kept = [load("a")]
    assert caches.gains() == {}
    kept.append(load("b")[0])  # type: ignore[arg-type]
    assert caches.gains() == {"object": 1}
    del kept
    assert caches.gains() == {"object": 6}


def test_a_cache_that_no_measurement_has_found_yet_explains_nothing() -> None:
    @functools.lru_cache(BOUND)
    def other(key: object) -> list[object]:
        return [key]

    caches = screened()
    caches.note()
    other(1)
    assert caches.gains() == {}
    gc.unfreeze()
