"""What a cache retains: objects that only it holds, blocks and bytes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from pytest_leakcheck.attribution.heap.cache_entries import count_exclusive, retained


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


class Small:
    __slots__ = ()


@pytest.mark.parametrize(
    ("entry", "size"),
    [(bytes(300), 0), (bytes(600), sys.getsizeof(bytes(600))), (Small(), 64), ([Small(), bytes(600)], 64 + 633)],
)
def test_bytes_are_those_that_malloc_may_serve_and_a_lock_of_each_object(entry: object, size: int) -> None:
    assert retained("heap", [entry], ()) == size


def test_a_container_has_up_to_three_blocks_and_another_object_one() -> None:
    assert retained("block", [["text", {1: 1.5}]], ()) == 3 + 1 + 3 + 2


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("number", "counted"), [(199_999, 2), (200_000, 1)])
def test_200_000_entries_are_not_looked_into(number: int, counted: int) -> None:
    assert retained("object", [[[]], *map(float, range(1, number))], ()) == counted
