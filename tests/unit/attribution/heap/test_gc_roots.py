"""The way from a module to an object, found although much else refers to it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import ModuleType

import pytest

from pytest_leakcheck.attribution.heap.reference_paths import find_paths


class Graph:
    """What a library has one of, and what all that is built refers to."""

    def __init__(self) -> None:
        self.registered: list[object] = []


class Built:
    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph


@pytest.fixture
def root() -> Iterator[dict[str, object]]:
    module = ModuleType("case_of_roots")
    yield vars(module)
    module.__dict__.clear()


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_many_of_one_kind_do_not_hide_the_way_out(root: dict[str, object], *, first: bool) -> None:
    graph = Graph()
    if first:
        root["stack"] = [(graph,)]
    built = [Built(graph) for _ in range(500)]
    graph.registered.extend(built)
    if not first:
        root["stack"] = [(graph,)]
    gc.collect()
    (path,) = find_paths([graph.registered], {id(built)})
    assert path, "no way was found"
    assert path[0] is root
    del root["stack"]
    (path,) = find_paths([graph.registered], {id(built)})
    # Only this test's own names are left.
    assert not path or path[0] is not root
