"""One object that should be gone: each place that holds it is named, and once it is fixed, nothing is said."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import gc
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from hostile import Hostile
from pytest_leakcheck import LeakError
from pytest_leakcheck.attribution.heap import collectable
from pytest_leakcheck.model import InputError
from pytest_leakcheck.plugin.inert import Leakcheck

LEAKCHECK = Leakcheck()
CACHE: dict[str, object] = {}
REGISTRY: list[Any] = []


class Item:
    """What should be gone."""

    beside: Any = None

    def notify(self) -> None: ...


class Page:
    last: ClassVar[object] = None


@functools.lru_cache
def lookup(item: Item) -> None: ...


def in_module(item: Item) -> Callable[[], object]:
    CACHE["newest"] = item
    return CACHE.clear


def in_class(item: Item) -> Callable[[], object]:
    Page.last = item
    return lambda: setattr(Page, "last", None)


def in_lru_cache(item: Item) -> Callable[[], object]:
    lookup(item)
    return lookup.cache_clear


def in_closure(item: Item) -> Callable[[], object]:
    REGISTRY.append(lambda: item)
    return REGISTRY.clear


def in_closure_of_another(given: Item) -> None:
    REGISTRY.append(lambda: given)


def as_bound_method(item: Item) -> Callable[[], object]:
    REGISTRY.append(item.notify)
    return REGISTRY.clear


def in_generator(item: Item) -> Callable[[], object]:
    def feed(waiting: Item) -> Iterator[Item]:
        yield waiting

    REGISTRY.append(feed(item))
    next(REGISTRY[0])
    return REGISTRY.clear


def in_traceback(item: Item) -> Callable[[], object]:
    def work(doing: Item) -> None:
        raise ValueError(id(doing))

    try:
        work(item)
    except ValueError as error:
        sys.last_value = error
    return lambda: delattr(sys, "last_value")


def in_finalizer(item: Item) -> Callable[[], object]:
    return weakref.finalize(Item, print, item).detach


HOLDERS: dict[Callable[[Item], Callable[[], object]], str] = {
    in_module: f"{__name__}.CACHE",
    in_class: "Page.last",
    in_lru_cache: "lru_cache of lookup[0]",
    in_closure: f"{__name__}.REGISTRY[0] closure cell 'item'",
    as_bound_method: f"{__name__}.REGISTRY[0].__self__",
    in_generator: "suspended generator in_generator.<locals>.feed() local 'waiting'",
    in_traceback: "frame of in_traceback() local 'item'",
    in_finalizer: "finalize._registry[a finalize].args[0]",
}


@pytest.mark.parametrize(("hold", "name"), HOLDERS.items())
def test_a_holder_is_named_until_it_lets_go(hold: Callable[[Item], Callable[[], object]], name: str) -> None:
    item = Item()
    LEAKCHECK.assert_collected(item)
    release = hold(item)
    with pytest.raises(LeakError) as raised:
        LEAKCHECK.assert_collected(item)
    assert str(raised.value).splitlines()[0] == f"Item is not collected: held by {name}"
    assert "<- keeps it" in str(raised.value)
    release()
    LEAKCHECK.assert_collected(item)
    # It is the user's: nothing was taken away, and nothing is kept.
    assert type(item) is Item
    gone = weakref.ref(item)
    del item
    assert gone() is None


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    CACHE.clear()
    REGISTRY.clear()


def first_line(raised: pytest.ExceptionInfo[LeakError]) -> str:
    return str(raised.value).partition("\n")[0].removeprefix("Item is not collected: ")


def test_a_cycle_holds_nothing_also_with_a_finalizer() -> None:
    finalized = []

    class Finalized(Item):
        def __del__(self) -> None:
            finalized.append(1)

    item = Item()
    item.beside = Finalized()
    item.beside.beside = item
    LEAKCHECK.assert_collected(item)
    assert finalized == []
    # It is no variable of the object, and leads to it.
    other = item.beside
    with pytest.raises(LeakError) as raised:
        LEAKCHECK.assert_collected(item)
    assert first_line(raised).endswith("local 'other'.beside")
    assert other


def test_garbage_whose_finalizer_makes_more_garbage() -> None:
    class Session(Item):
        def __del__(self) -> None:
            REGISTRY.pop()

    item = Item()
    for cycle in (Item(), Session(), Session()):
        cycle.beside = [cycle, item]
        REGISTRY.append(cycle)
    del cycle
    # Three rounds: each frees one of the cycles.
    REGISTRY.pop()
    LEAKCHECK.assert_collected(item)


def test_a_callback_of_its_own_is_no_holder_whose_variable_the_caller_shares() -> None:
    item = Item()
    item.beside = lambda: item
    LEAKCHECK.assert_collected(item)
    assert [index for index in range(3) if item.beside] == [0, 1, 2]
    callback = lambda: item  # noqa: E731
    with pytest.raises(LeakError) as raised:
        LEAKCHECK.assert_collected(item)
    assert first_line(raised).endswith("local 'callback' closure cell 'item'")
    del callback
    LEAKCHECK.assert_collected(item)
    REGISTRY.append(lambda: item)
    with pytest.raises(LeakError, match=r"REGISTRY\[0\] closure cell 'item'"):
        LEAKCHECK.assert_collected(item)
    REGISTRY.clear()
    in_closure_of_another(item)
    with pytest.raises(LeakError, match=r"REGISTRY\[0\] closure cell 'given'"):
        LEAKCHECK.assert_collected(item)


def test_a_variable_of_another_function_holds_it() -> None:
    def inner(given: Item) -> None:
        LEAKCHECK.assert_collected(given)

    inner(Item())
    item = Item()
    with pytest.raises(LeakError) as raised:
        inner(item)
    name = test_a_variable_of_another_function_holds_it.__name__
    assert first_line(raised) == f"held by frame of {name}() local 'item'"


def test_a_free_variable_of_the_caller_is_held_by_the_function() -> None:
    def make() -> Callable[[], None]:
        item = Item()

        def check() -> None:
            LEAKCHECK.assert_collected(item)

        return check

    REGISTRY.append(make())
    with pytest.raises(LeakError) as raised:
        REGISTRY[0]()
    assert first_line(raised) == f"held by {__name__}.REGISTRY[0] closure cell 'item'"


def test_a_class_is_held_by_what_refers_to_it_and_not_by_itself() -> None:
    class Local:
        made: ClassVar[object] = None

    def make() -> object:
        class Single:
            one: ClassVar[object] = None

        Single.one = Single()
        return Single.one

    single = make()
    LEAKCHECK.assert_collected(single)
    kind = Local
    LEAKCHECK.assert_collected(kind)
    Local.made = Local()
    item = Local.made
    with pytest.raises(LeakError, match=r"Local is not collected: held by .*Local\.made"):
        LEAKCHECK.assert_collected(item)
    CACHE["kind"] = Local
    with pytest.raises(LeakError, match=r"type is not collected: held by .*CACHE"):
        LEAKCHECK.assert_collected(kind)


def test_a_dict_of_variables_holds_it_and_is_left_as_it_is() -> None:
    item = Item()
    variables = locals()
    with pytest.raises(LeakError) as raised:
        LEAKCHECK.assert_collected(item)
    assert first_line(raised).endswith("local 'variables'")
    assert variables["item"] is item
    del variables
    LEAKCHECK.assert_collected(item)


def test_a_thread_holds_its_arguments_and_one_that_returns_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectable, "_MAX_WAIT", 0.0)
    begun, goes_on = threading.Event(), threading.Event()

    def work(doing: Item) -> None:
        begun.set()
        assert goes_on.wait(60)
        assert doing.beside is None

    item = Item()
    thread = threading.Thread(target=work, args=(item,), name="worker")
    thread.start()
    assert begun.wait(60)
    with pytest.raises(LeakError) as raised:
        LEAKCHECK.assert_collected(item)
    assert first_line(raised) == "held by thread 'worker'._args[0]"
    monkeypatch.setattr(collectable, "_MAX_WAIT", 60.0)
    threading.Timer(0.1, goes_on.set).start()
    LEAKCHECK.assert_collected(item)
    thread.join()


def test_an_executor_that_has_just_handed_over_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectable, "_MAX_WAIT", 60.0)
    with ThreadPoolExecutor(1) as executor:
        for _ in range(20):
            item = Item()
            executor.submit(item.notify).result()
            LEAKCHECK.assert_collected(item)


def test_a_coroutine_and_its_task() -> None:
    async def main() -> None:
        item = Item()
        item.beside = asyncio.current_task()
        await asyncio.sleep(0)
        LEAKCHECK.assert_collected(item)
        waiting = asyncio.create_task(asyncio.sleep(60, item))
        await asyncio.sleep(0)
        with pytest.raises(LeakError, match=r"Item is not collected: held by .*_scheduled"):
            LEAKCHECK.assert_collected(item)
        waiting.cancel()
        await asyncio.wait([waiting])
        # Its exception has a traceback.
        del waiting
        LEAKCHECK.assert_collected(item)

    asyncio.run(main())


def test_an_exception_that_is_being_handled() -> None:
    def work(doing: Item) -> None:
        raise ValueError(id(doing))

    item = Item()
    try:
        work(item)
    except ValueError:
        with pytest.raises(LeakError) as raised:
            LEAKCHECK.assert_collected(item)
        assert "held by      exception that is being handled" in str(raised.value)
        # The failure itself has that exception as its context.
        del raised
    LEAKCHECK.assert_collected(item)


def test_what_no_object_accounts_for_is_counted_and_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other plugins may have threads.
    monkeypatch.setattr(collectable, "_MAX_WAIT", 0.0)
    item, kept = Item(), [Item()]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
    with pytest.raises(LeakError) as raised:
        LEAKCHECK.assert_collected(item)
    assert first_line(raised) == "1 reference is held by C, or by objects that the collector does not list"
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(item))
    LEAKCHECK.assert_collected(item)
    for item in kept:
        del kept
        with pytest.raises(LeakError) as raised:
            LEAKCHECK.assert_collected(item)
    # Python 3.15 makes no iterator for this loop.
    assert re.fullmatch(
        "held by a (list_iterator|list of 1), and that by a loop, a call, C, or an object that the collector does not list",
        first_line(raised),
    )
    LEAKCHECK.assert_collected(item)


def test_a_weak_reference_must_be_dead() -> None:
    item = Item()
    reference, method = weakref.ref(item), weakref.WeakMethod(item.notify)
    for one in (reference, method):
        with pytest.raises(LeakError) as raised:
            LEAKCHECK.assert_collected(one)
        assert first_line(raised) == f"held by frame of {test_a_weak_reference_must_be_dead.__name__}() local 'item'"
    item.beside = item
    del item
    LEAKCHECK.assert_collected(reference)
    LEAKCHECK.assert_collected(method)


def test_a_block_checks_all_its_objects_at_its_end() -> None:
    one, other = Item(), Item()
    with LEAKCHECK.collected(one, other):
        CACHE["newest"] = other
        CACHE.clear()
    with contextlib.ExitStack() as stack:
        stack.enter_context(LEAKCHECK.collected(one))
    with pytest.raises(LeakError, match=r"CACHE\n"), LEAKCHECK.collected(one, other):
        CACHE["newest"] = other
    with pytest.raises(KeyError), LEAKCHECK.collected(one, other):
        CACHE["oldest"]


@pytest.mark.parametrize("one", [3, "text", [], {}, (), object()])
def test_what_cannot_be_weakly_referenced_is_refused(one: object) -> None:
    for check in (LEAKCHECK.assert_collected, LEAKCHECK.collected):
        with pytest.raises(
            InputError, match=f"^{type(one).__name__} objects cannot be weakly referenced.*Give the object"
        ):
            check(one)


def test_no_code_of_the_object_is_run() -> None:
    hostile = Hostile()
    CACHE["newest"] = hostile
    Hostile.armed = True
    try:
        with pytest.raises(LeakError, match=r"Hostile is not collected: held by .*CACHE"):
            LEAKCHECK.assert_collected(hostile)
        CACHE.clear()
        LEAKCHECK.assert_collected(hostile)
    finally:
        Hostile.armed = False


def test_what_the_program_has_frozen_stays_so_and_hides_nothing() -> None:
    item, other = Item(), Item()
    other.beside, other = item, Item()
    CACHE["newest"] = item
    gc.freeze()
    try:
        with pytest.raises(LeakError, match=r"CACHE\n"):
            LEAKCHECK.assert_collected(item)
        assert gc.get_freeze_count() > 1_000
        CACHE.clear()
        LEAKCHECK.assert_collected(item)
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("follow", [sys.setprofile, sys.settrace])
def test_a_profiler_or_a_debugger_changes_nothing(follow: Callable[[Any], None]) -> None:
    def event(*_: object) -> object:
        return event

    before = sys.getprofile() if follow is sys.setprofile else sys.gettrace()
    item = Item()
    item.beside = lambda: item
    follow(event)
    try:
        LEAKCHECK.assert_collected(item)
        CACHE["newest"] = item
        with pytest.raises(LeakError, match=r"CACHE\n"):
            LEAKCHECK.assert_collected(item)
        CACHE.clear()
        LEAKCHECK.assert_collected(item)
    finally:
        follow(before)
