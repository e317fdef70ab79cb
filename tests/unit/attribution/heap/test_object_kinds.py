"""What there is more and more of is told by type, most telling first."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.attribution.heap.growing_containers import GrowingContainer
from pytest_leakcheck.attribution.heap.object_kinds import _graph_keeps, _list_nodes, kind_of_entries, kinds_of
from pytest_leakcheck.attribution.tracing.call_tree import CallTree
from pytest_leakcheck.model.culprit import Remainder


class Frame:
    def __init__(self, number: int) -> None:
        self.pixels = [number] * 4


def test_builtin_types_are_told_where_there_are_none_of_the_programs_own_and_what_is_rare_is_left_out() -> None:
    frames: list[Any] = [Frame(n) for n in range(20)]
    lists: list[Any] = [[] for _ in range(30)]
    (own,) = kinds_of([*frames, *lists, {}, lambda: None], 20, 0.5)
    assert (own.what, own.count) == ("Frame", 20)
    assert own.note.endswith(" B each, in 20 iterations")
    (builtin,) = kinds_of([*lists, {}, lambda: None], 20, 0.5)
    assert builtin == Remainder("list", 30, "56 B each, in 20 iterations")
    assert kinds_of(frames, 21, 1.0) == ()
    assert kinds_of(frames[:1], 1, 0.0) == ()


def test_the_parts_of_the_search_s_own_objects_are_no_kind() -> None:
    trees = [CallTree(lambda: 0) for _ in range(5)]
    found = [*trees, *(tree.root for tree in trees), *(tree.root.calls for tree in trees)]
    assert kinds_of(found, 5, 0.5) == ()
    assert kinds_of([tree.root.calls for tree in trees], 5, 0.5) == (
        Remainder("dict", 5, "64 B each, in 5 iterations"),
    )


def test_of_bytes_the_part_that_holds_them_counts_and_not_what_it_is_in() -> None:
    def kind(entry: Any, *, of_bytes: bool) -> tuple[str, int, str] | None:
        held = kind_of_entries(GrowingContainer([entry(), entry()], 2), 2, of_bytes=of_bytes)
        return None if held is None else (held.what, held.count, held.note.partition(",")[0])

    large = 1 << 16
    assert kind(lambda: bytearray(large), of_bytes=True) == ("bytearray", 2, "65")
    assert kind(lambda: [bytearray(large)], of_bytes=True) == ("bytearray", 2, "65")
    # No part of it holds most of the bytes.
    assert kind(lambda: [bytearray(large), bytearray(large), bytearray(large)], of_bytes=True) == ("list", 2, "196")
    # Of objects, a list only holds others, and an object of another type is named itself.
    assert kind(lambda: [bytearray(large)], of_bytes=False) is None
    error = kind(lambda: KeyError(1), of_bytes=False)
    assert error is not None
    assert error[:2] == ("KeyError", 2)


def test_of_bytes_the_kind_that_holds_the_most_comes_first() -> None:
    class Small:
        __slots__ = ("value",)

    class Large:
        __slots__ = tuple(f"value_{number}" for number in range(40))

    found = [*(Small() for _ in range(20)), *(Large() for _ in range(10))]
    by_number = kinds_of(found, 10, 0.5)
    by_size = kinds_of(found, 10, 0.5, least_bytes=1)
    assert [one.count for one in by_number] == [20, 10]
    assert [one.count for one in by_size] == [10, 20]


def test_what_several_objects_share_is_told_once_and_what_replaced_others_is_not_told() -> None:
    class Wrapper:
        def __init__(self, inner: object) -> None:
            self.inner = inner

    kept = [Wrapper(Wrapper(bytearray(10_000))) for _ in range(4)]
    inner = [one.inner for one in kept]
    (held,) = kinds_of([*kept, *inner], 4, 0.5, least_bytes=1000)
    assert (held.what, held.note.partition(",")[0]) == ("bytearray", "10")
    assert kinds_of(kept, 4, 0.5, more={id(Wrapper): 4}) != ()
    assert kinds_of(kept, 4, 0.5, more={id(Wrapper): 1}) == ()


def test_the_five_most_frequent_kinds_are_told() -> None:
    kinds = [type(f"Kind{number}", (), {"__slots__": ()}) for number in range(12)]
    found = kinds_of([kind() for number, kind in enumerate(kinds) for _ in range(10 + number)], 10, 0.5)
    assert [one.what for one in found] == ["Kind11", "Kind10", "Kind9", "Kind8", "Kind7"]


class Operation:
    """Of a graph of torch."""

    next_functions: tuple[tuple[Any, int], ...] = ()


@pytest.mark.parametrize(("later", "keeps"), [(2, True), (3, False)])
def test_the_graphs_of_the_three_newest_tensors_are_looked_into(later: int, *, keeps: bool) -> None:
    kept, without = SimpleNamespace(grad_fn=Operation()), SimpleNamespace(grad_fn=None)
    assert _graph_keeps([kept, *[without] * later], kept) is keeps


@pytest.mark.parametrize(("operations", "listed"), [(9_000, 9_000), (12_000, 9_999)])
def test_a_graph_is_followed_for_up_to_10_000_operations(operations: int, listed: int) -> None:
    graph = [Operation() for _ in range(operations)]
    for one, following in pairwise(graph):
        one.next_functions = ((following, 0),)
    assert sum(1 for _ in _list_nodes(graph[0])) == listed
