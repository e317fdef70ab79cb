"""A cycle that only the collector frees is named by the types in it."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator

import pytest

from pytest_leakcheck.attribution.heap.cycles import find_garbage, handles_in, largest_in, name_cycles


class Container:
    """Stands for what holds a descriptor."""


class Stream:
    """Refers back to its container."""


class Window:
    """Another cycle, of its own."""


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Only what the test makes is garbage, and nothing else collects it."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.enable()
    gc.collect()


def leave(count: int) -> None:
    for _ in range(count):
        container, stream = Container(), Stream()
        container.streams = [stream]  # type: ignore[attr-defined]
        stream.container = container  # type: ignore[attr-defined]


def window(entry: object = None) -> None:
    one = Window()
    one.me, one.entry = one, entry  # type: ignore[attr-defined]


def cycle_of(leak: Callable[..., object], *args: object, count: int = 9) -> tuple[str, ...]:
    leak(*args)
    return name_cycles(find_garbage(gc.get_objects()), count)


def test_the_types_of_a_cycle_are_named_and_what_is_alive_or_freed_by_itself_is_not() -> None:
    assert cycle_of(leave, 9) == ("Container", "Stream")
    gc.collect()
    assert cycle_of(lambda: [Container() for _ in range(9)]) == ()
    alive = Window()
    alive.me = alive  # type: ignore[attr-defined]
    assert cycle_of(leave, 0) == ()
    del alive
    assert cycle_of(leave, 0) == ("Window",)


def test_the_cycle_that_comes_as_often_as_what_grows_is_the_one() -> None:
    window()
    assert cycle_of(leave, 9) == ("Container", "Stream")


def test_nothing_is_finalized_to_find_garbage() -> None:
    ended = []

    class Loop:
        def __del__(self) -> None:
            ended.append(self)
            del self.me  # type: ignore[attr-defined]

    def left() -> None:
        loop = Loop()
        loop.me = loop  # type: ignore[attr-defined]

    assert cycle_of(left) == ("Loop",)
    assert ended == []


class Descriptor:
    """Gives its descriptor back when it is freed."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class Numbered:
    """Only has a number."""

    def __init__(self, number: int) -> None:
        self.number = number


def pair(container: object, stream: object) -> None:
    """Make a cycle of two."""
    container.stream, stream.container = stream, container  # type: ignore[attr-defined]


def test_of_several_the_nearest_that_leads_to_what_is_retained_is_named() -> None:
    def beside(number: int) -> None:
        container = Container()
        pair(container, Descriptor(number))
        window(container)
        window()

    number = os.open(os.devnull, os.O_RDONLY)
    beside(number)
    garbage = find_garbage(gc.get_objects())
    assert name_cycles(garbage, 2) == ("Window",)
    _same, finalized, hidden = handles_in(garbage, {number})
    assert name_cycles(garbage, 1, finalized) == ("Container", "Descriptor")
    # Each kind of evidence is given: a number of the same value, which no cycle leads to, hides none that is better.
    assert (hidden, [*handles_in(garbage, {number + 1})]) == (frozenset(), [frozenset()] * 3)


@pytest.mark.parametrize(("closes", "named"), [("del", "Descriptor"), ("finalize", "Stream"), ("", "")])
def test_only_what_can_give_a_descriptor_back_has_kept_it(closes: str, named: str) -> None:
    def beside(number: int) -> None:
        # Comes first, and is as near.
        pair(Container(), Numbered(number))
        if closes == "del":
            pair(Container(), Descriptor(number))
        elif closes:
            stream = Stream()
            stream.number = number  # type: ignore[attr-defined]
            weakref.finalize(stream, os.close, number)
            pair(Container(), stream)

    number = os.open(os.devnull, os.O_RDONLY)
    beside(number)
    garbage = find_garbage(gc.get_objects())
    _same, finalized, _hidden = handles_in(garbage, {number})
    assert (name_cycles(garbage, 1, finalized) if finalized else ()) == (("Container", named) if named else ())
    if not closes:
        os.close(number)


def test_a_frame_is_named_with_its_function_and_the_variable_that_closes_the_cycle() -> None:
    def fails() -> None:
        try:
            [].pop()
        except IndexError as error:
            last = [error]
            assert last

    def caller() -> None:
        buffer = bytearray(100_000)
        fails()
        assert buffer

    caller()
    garbage = find_garbage(gc.get_objects())
    where = (
        f"{test_a_frame_is_named_with_its_function_and_the_variable_that_closes_the_cycle.__name__}.<locals>.fails()"
    )
    wanted = ("IndexError", "traceback", f"frame of {where} local 'last'")
    assert name_cycles(garbage, 1, largest_in(garbage, 50_000)) == wanted
    assert largest_in(garbage, 1e6) == frozenset()


def test_a_cycle_of_functions_alone_is_named_by_them() -> None:
    def closes() -> None:
        def again(number: int) -> object:
            return again if number else None

        again(0)

    (name,) = cycle_of(closes)
    assert name.endswith("closes.<locals>.again")
    assert name.startswith("function ")


def test_objects_of_half_the_size_of_the_largest_hold_what_is_retained() -> None:
    texts = [bytes(100_000), bytes(60_000), bytes(40_000)]
    assert largest_in([texts], 1) == {*map(id, texts[:2])}


@pytest.mark.parametrize(("before", "named"), [(4_990, ("Window",)), (5_000, ())])
def test_a_cycle_is_looked_for_among_5000_objects(before: int, named: tuple[str, ...]) -> None:
    one = Window()
    one.me = one  # type: ignore[attr-defined]
    assert name_cycles([*[Container()] * before, one], 1) == named


class Link:
    """Refers to the next one, and perhaps to one beside it, without a dict."""

    __slots__ = ("beside", "following")


@pytest.mark.parametrize(("place", "length"), [(45, 2), (55, 100)])
def test_a_shorter_cycle_is_looked_for_from_the_50_nearest_objects(place: int, length: int) -> None:
    ring = [Link() for _ in range(100)]
    for one, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        one.following = following  # type: ignore[attr-defined]
    ring[place].beside = beside = Link()  # type: ignore[attr-defined]
    beside.following = ring[place]  # type: ignore[attr-defined]
    assert name_cycles([*ring, beside], 1) == ("Link",) * length
