"""Who holds it where C does, or a registry of the interpreter: that is said, and who keeps it."""

from __future__ import annotations

import atexit
import contextvars
import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from held import MORE, WARM, forget, holders_of
from leaks import Item
from pytest_leakcheck.attribution.heap.growing_containers import Growing, newcomers
from pytest_leakcheck.attribution.heap.owner_search import Holders, Sought, search


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    gc.collect()
    yield
    forget()


def test_a_reference_that_is_lost_in_c_is_said_to_be_there() -> None:
    lost: list[int] = []

    def step(_i: int) -> None:
        one = Item()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
        lost.append(id(one))

    holders = holders_of(step, Item)
    assert holders.owners == ()
    assert holders.reason == f"{WARM} references are held outside Python objects (C)"
    for place in lost:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(place, ctypes.py_object))


def test_a_container_that_is_held_from_c_is_said_to_be() -> None:
    def hidden() -> Callable[[], Callable[[], None] | None]:
        items: list[bytes] = []

        def add() -> None:
            items.append(bytes(100))

        return weakref.ref(atexit.register(add))

    reference = hidden()
    holders = holders_of(lambda _i: _call(reference()))
    atexit.unregister(reference())  # type: ignore[arg-type]
    assert holders.owners == ()
    assert holders.reason == f"a list of {WARM + MORE} grows, and is held outside Python objects (C)"


def _call(function: Callable[[], None] | None) -> None:
    assert function is not None
    function()


def test_a_value_that_has_grown_by_too_little_is_passed_over() -> None:
    """What holds a text is no container, so it has no entries that could be of a type written in C."""
    report = SimpleNamespace(text="x" * 200)
    found = search(Sought(iterations=10, size=10_000.0), [], [Growing(report, 5, report.text)], ())
    assert found.owners == ()
    assert found.reason == "no container or value grew at this rate"


def test_a_search_without_time_says_so_and_guesses_nothing() -> None:
    gc.freeze()
    kept = Item()
    kept.beside = Item()
    kept.beside.beside = Item()
    new = newcomers()
    gc.unfreeze()
    sought = Sought(iterations=2, rate=1.0, in_python=True)
    found = search(sought, [kept.beside, kept.beside.beside], (), new, deadline=0.0)
    assert found == Holders((), "the search ran out of time")
    assert search(sought, [kept.beside, kept.beside.beside], (), new).reason != found.reason


def test_callbacks_of_atexit_are_counted_and_named_where_they_come_at_the_rate() -> None:
    def owners(**evidence: Any) -> list[tuple[str, float]]:
        return [(one.name, one.gained) for one in search(Sought(10, **evidence), [], [], ()).owners]

    assert owners(rate=2.0, in_python=True, exits=10) == [("atexit", 1.0)]
    assert owners(rate=1.0, identities=frozenset({7}), exits=10) == [("atexit", 1.0)]
    assert owners(rate=1.0, in_python=True, exits=4) == []
    # Variables come more often than objects that the collector tracks: their table has few.
    context = contextvars.Context()
    grown = [Growing(context, 10)]
    assert search(Sought(10, 0.4, in_python=True), [], grown, ()).owners == ()
    (owner,) = context.run(search, Sought(10, 0.4, in_python=True), [], grown, ()).owners
    assert (owner.name, owner.holds) == ("context of the running thread", "10 × variable")
    # What C allocated is no part of a callback.
    assert owners(size=5000.0, exits=10) == []
