"""A cycle that only the collector frees is named by the types in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_leakcheck.attribution.heap.cycles import name_cycles, save_garbage


class Container:
    """Stands for what holds a descriptor."""


class Stream:
    """Refers back to its container."""


class Window:
    """Another cycle, of its own."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Only what the test makes is garbage."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def leave(count: int) -> None:
    for _ in range(count):
        container, stream = Container(), Stream()
        container.streams = [stream]  # type: ignore[attr-defined]
        stream.container = container  # type: ignore[attr-defined]


def garbage_of(leak: Any, *args: int) -> tuple[str, ...]:
    leak(*args)
    return name_cycles(save_garbage(gc.collect), 9)


def test_the_types_of_a_cycle_are_named_and_what_is_freed_by_itself_is_not() -> None:
    assert garbage_of(leave, 9) == ("Container", "Stream")
    gc.collect()
    assert garbage_of(lambda: [Container() for _ in range(9)]) == ()


def test_the_cycle_that_comes_as_often_as_what_grows_is_the_one() -> None:
    def both() -> None:
        window = Window()
        window.me = window  # type: ignore[attr-defined]
        leave(9)

    assert garbage_of(both) == ("Container", "Stream")


def test_the_collector_is_put_back_as_it_was() -> None:
    leave(1)
    kept = save_garbage(gc.collect)
    assert len([one for one in kept if type(one) in (Container, Stream)]) == 2
    assert gc.garbage == []
    assert gc.get_debug() == 0
    del kept
    leave(1)
    assert gc.collect() >= 2
