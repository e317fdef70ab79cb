"""Caches without a bound, and what they hold on to."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict

import numpy as np

from cases.case import leak, numbers

NUMBERS = numbers()
PAGES: OrderedDict[int, bytes] = OrderedDict()


@functools.cache
def render(number: int) -> list[int]:
    return [number]


@functools.lru_cache(maxsize=16)
def render_few(number: int) -> list[int]:
    return [number]


@functools.lru_cache(maxsize=None)
def load(number: int) -> np.ndarray:
    return np.full(100, number)


@functools.lru_cache(maxsize=16)
def load_few(number: int) -> np.ndarray:
    return np.full(100, number)


class Report:
    """Caches on a method hold every instance that was ever asked."""

    def __init__(self, rows: int) -> None:
        self.rows = list(range(rows))

    @functools.lru_cache(maxsize=None)  # noqa: B019
    def total(self) -> int:
        return sum(self.rows)

    @functools.cached_property
    def own_total(self) -> int:
        return sum(self.rows)


def page_cached() -> None:
    number = next(NUMBERS)
    PAGES[number] = bytes(700)


def page_evicted() -> None:
    number = next(NUMBERS)
    PAGES[number] = bytes(700)
    while len(PAGES) > 16:
        PAGES.popitem(last=False)


class Document:
    """What a cache of weak references would let go."""

    def __init__(self) -> None:
        self.words = ["a", "b"]


STRONG: dict[int, Document] = {}
WEAK: weakref.WeakValueDictionary[int, Document] = weakref.WeakValueDictionary()


def by_identity() -> None:
    document = Document()
    STRONG[id(document)] = document


def by_weak_identity() -> None:
    document = Document()
    WEAK[id(document)] = document


CASES = (
    leak("cache_without_bound", "object",
         lambda: render(next(NUMBERS)),
         lambda: render_few(next(NUMBERS)),
         render.cache_clear,
         line="return [number]", owner="lru_cache of render"),
    leak("cache_of_arrays", "heap",
         lambda: load(next(NUMBERS)),
         lambda: load_few(next(NUMBERS)),
         load.cache_clear,
         line="np.full(100", owner="lru_cache of load"),
    leak("cache_on_a_method", "object",
         lambda: Report(20).total(),
         lambda: Report(20).own_total,
         Report.total.cache_clear,
         line=("Report(20).total()", "self.rows = list("), owner="lru_cache of Report.total"),
    leak("pages_without_eviction", "heap", page_cached, page_evicted, PAGES.clear, line="bytes(700)", owner=".PAGES"),
    leak("cache_by_identity", "object", by_identity, by_weak_identity, STRONG.clear,
         line=("document = Document()", 'self.words = ["a", "b"]', "STRONG[id(document)]"), owner=".STRONG"),
)  # fmt: skip
