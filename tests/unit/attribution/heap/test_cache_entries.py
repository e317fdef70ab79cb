"""Objects that only a cache holds are counted; those to which anything else refers are not."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pytest_leakcheck.attribution.heap.cache_entries import count_exclusive


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
