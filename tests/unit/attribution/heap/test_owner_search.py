"""Who holds it: each place where things are kept is named, and is no longer once it is fixed."""

from __future__ import annotations

import atexit
import colorsys
import contextvars
import ctypes
import gc
import logging
import signal
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import leaks
from held import MORE, WARM, forget, holders_of, is_named_until_fixed, owner_of
from hostile import Hostile
from leaks import Item, Step
from pytest_leakcheck.attribution import call_paths
from pytest_leakcheck.attribution.heap import owner_search
from pytest_leakcheck.attribution.heap.growing_containers import GrowingContainer, newcomers
from pytest_leakcheck.attribution.heap.owner_search import Holders, SearchTarget, find_owners, search
from pytest_leakcheck.model.culprit import Culprit, Owner, own_owner
from pytest_leakcheck.model.culprit import Step as Reference


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    gc.collect()
    yield
    forget()


CONTAINERS: tuple[dict[Step, str], ...] = (
    {
        leaks.module_list: "leaks.KEPT",
        leaks.untracked_dict: "leaks.CACHE",
        leaks.hash_set: "leaks.SEEN",
        leaks.grouped: "leaks.GROUPED[a str of 3]",
        leaks.thread_local: "leaks.PER_THREAD.entries",
    },
    {
        leaks.class_attribute: "Trainer.history",
        leaks.instance: "leaks.trainer.uploads[a str of 3]",
        leaks.namespace: "leaks.SESSIONS.[a str of 5]",
        leaks.slots: "leaks.slotted.entries",
        leaks.closure: "leaks.add closure cell 'items'",
    },
    {
        leaks.default_argument: "leaks.remember default argument 'acc'",
        leaks.keyword_default: "leaks.remember_by_name default argument 'store'",
        leaks.function_attribute: "leaks.function_attribute.calls",
        leaks.generator: "suspended generator _feed() local 'seen'",
        leaks.lru: "lru_cache of lookup",
    },
)


@pytest.mark.parametrize("steps", CONTAINERS)
def test_a_container_of_what_is_not_tracked(steps: dict[Step, str]) -> None:
    owners = are_named_until_fixed(steps)
    for owner in owners:
        assert owner.gained == 1.0
        assert owner.root.startswith(("module leaks", "class Trainer in leaks"))
        assert owner.holds.startswith((f"{MORE} × ", f"{MORE} results"))


VALUES: tuple[dict[Step, str], ...] = (
    {
        leaks.text: "leaks.trainer.log",
        leaks.global_text: "leaks.LOG",
        leaks.slot_text: "leaks.slotted.text",
        leaks.in_place: "leaks.trainer.buffer",
    },
    {
        leaks.numbers: "leaks.trainer.numbers",
        leaks.parts: "leaks.trainer.parts",
        leaks.binary_file: "leaks.trainer.file",
    },
)


@pytest.mark.parametrize("steps", VALUES)
def test_a_value_that_is_replaced_by_longer_ones(steps: dict[Step, str]) -> None:
    for i in range(20):
        for step in steps:
            step(i, True)
    for owner in are_named_until_fixed(steps, rate=None, size=17.0):
        assert owner.gained in (16.0, 17.0)
        assert "that grows" in owner.holds


def test_an_array_that_is_replaced_by_longer_ones() -> None:
    pytest.importorskip("numpy")
    for i in range(20):
        leaks.numpy_array(i, True)
    is_named_until_fixed(leaks.numpy_array, "leaks.trainer.grown", rate=None, size=16.0)


def are_named_until_fixed(steps: dict[Step, str], **hints: Any) -> tuple[Owner, ...]:
    """All of them, and nothing else."""
    owners = holders_of(lambda i: [step(i, True) for step in steps], **hints).owners
    assert {owner.name for owner in owners} == {*steps.values()}
    fixed = holders_of(lambda i: [step(i, False) for step in steps], **hints)
    assert not {owner.name for owner in fixed.owners} & {*steps.values()}
    return owners


@pytest.mark.parametrize(
    ("step", "kind", "name"),
    [
        (leaks.list_of_items, Item, "leaks.KEPT"),
        (leaks.list_of_cycles, Item, "leaks.KEPT"),
        (leaks.linked, Item, "leaks.chain.beside"),
        (leaks.registered, leaks._Iterator, "leaks._py_funcs._functions"),
        (leaks.weak_keys, Item, "leaks.LIVE_KEYS"),
        (leaks.handlers, logging.NullHandler, "logging.getLogger('leaks.logger').handlers"),
    ],
)
def test_what_is_tracked_leads_to_what_holds_it(step: Step, kind: type, name: str) -> None:
    owner = is_named_until_fixed(step, name, kind)
    assert owner.holds.startswith(f"{WARM} × {kind.__qualname__}")


def test_the_path_has_each_reference_and_marks_the_suspect() -> None:
    owner = owner_of(lambda i: leaks.instance(i, True))
    last = len(leaks.trainer.uploads["all"]) - 1
    assert owner.steps == (
        Reference("module leaks", "trainer"),
        Reference("Trainer", ".uploads"),
        Reference("dict of 1", "[a str of 3]"),
        Reference(f"list of {last + 1}", f"[{last}]", suspect=True),
    )
    assert owner.holds == f"{MORE} × bytearray, {sys.getsizeof(bytearray(700)):,} B each"


def test_a_number_in_a_list_is_the_entry_and_not_its_index() -> None:
    # Small numbers are the same object as an index.
    owner = owner_of(lambda i: leaks.KEPT.append(1000 + i))
    last = WARM + MORE - 1
    assert owner.steps[1:] == (Reference(f"list of {last + 1}", f"[{last}]", suspect=True),)
    assert owner.holds == f"{MORE} × int, 28 B each"


def test_code_of_the_users_is_not_run() -> None:
    def step(i: int) -> None:
        Hostile.armed = False
        leaks.hostile(i, True)
        Hostile.armed = True

    assert owner_of(step).name == "leaks.HOSTILE"


def test_a_thread_holds_it() -> None:
    go, done, stop = threading.Event(), threading.Event(), False

    def work() -> None:
        while True:
            go.wait()
            go.clear()
            if stop:
                return
            worker.__dict__.setdefault("seen", []).append(bytes(500))
            done.set()

    def step(_i: int) -> None:
        done.clear()
        go.set()
        done.wait()

    worker = threading.Thread(target=work, name="worker")
    worker.start()
    try:
        owner = owner_of(step)
    finally:
        stop = True
        go.set()
        worker.join()
    assert owner.name == "thread 'worker'.seen"


def test_a_local_of_a_running_frame_holds_it() -> None:
    seen: list[bytes] = []
    append = seen.append
    owner = owner_of(lambda _i: append(bytes(400)))
    # A cell would be a closure's; this is a local of the frame alone.
    assert owner.root == "frame of test_a_local_of_a_running_frame_holds_it()"
    assert "local 'seen'" in owner.name or "local 'append'" in owner.name


def test_what_stands_still_or_is_emptied_is_not_named() -> None:
    holders = holders_of(leaks.churning)
    assert holders.owners == ()
    assert holders.reason == "no container or value grew at this rate"


def test_of_two_rates_the_one_that_is_asked_for_is_named() -> None:
    def step(i: int) -> None:
        leaks.module_list(i, True)
        leaks.CACHE.update(((i, at), None) for at in range(2))

    assert owner_of(step, rate=1.0).name == "leaks.KEPT"
    leaks.CACHE.clear()
    assert owner_of(step, rate=2.0).name == "leaks.CACHE"


def test_bytes_tell_the_owner_from_what_only_counts() -> None:
    def step(i: int) -> None:
        leaks.module_list(i, True)
        leaks.CACHE[i] = None

    assert owner_of(step, rate=None, size=3033.0).name == "leaks.KEPT"
    # What no entry amounts to is retained elsewhere.
    assert not holders_of(step, rate=None, size=1e6).owners


def test_a_sparse_leak_is_told_from_a_single_entry() -> None:
    def step(i: int) -> None:
        if i % 10 == 0:
            leaks.module_list(i, True)
        if i in (3, WARM + 3):
            leaks.CACHE[i] = bytes(500)

    assert owner_of(step, rate=0.1, more=24).name == "leaks.KEPT"
    assert not holders_of(leaks.churning, rate=0.1, more=24).owners


def test_weak_references_own_nothing() -> None:
    # What is gone is another matter: then the reference itself is what is kept.
    alive = [Item() for _ in range(WARM + MORE)]
    holders = holders_of(lambda i: leaks.KEPT.append(weakref.ref(alive[i])))
    assert "leaks.KEPT" not in [owner.name for owner in holders.owners]
    leaks.KEPT.clear()
    assert owner_of(lambda _i: leaks.KEPT.append(weakref.ref(Item(), id))).name == "leaks.KEPT"


def test_what_is_spread_over_containers_leads_to_all_of_them() -> None:
    leaks.KEPT.extend([] for _ in range(4))
    holders = holders_of(lambda i: leaks.KEPT[i % 4].append(Item()), Item)
    assert {owner.name for owner in holders.owners} == {f"leaks.KEPT[{at}]" for at in range(4)}


def test_a_namespace_may_be_the_container() -> None:
    owner = owner_of(lambda i: setattr(leaks, f"kept_{i}", bytes(100)))
    for name in [name for name in vars(leaks) if name.startswith("kept_")]:
        delattr(leaks, name)
    assert owner.name == f"leaks.kept_{WARM + MORE - 1}"
    assert owner.root == "module leaks"


def test_what_the_caller_holds_itself_is_not_named() -> None:
    own: list[Item] = []
    leaks.KEPT.append(own)
    gc.freeze()
    own.extend(Item() for _ in range(WARM))
    new = newcomers()
    survivors = [one for one in gc.get_objects() if type(one) is Item]
    gc.unfreeze()
    assert (
        find_owners(SearchTarget(WARM), [GrowingContainer(own, WARM)], survivors, new).owners[0].name == "leaks.KEPT[0]"
    )
    assert not find_owners(SearchTarget(WARM), [GrowingContainer(own, WARM)], survivors, new, {id(own)}).owners


def test_what_uses_the_newest_of_them_does_not_keep_the_others() -> None:
    gc.freeze()
    own = [Item() for _ in range(WARM)]
    leaks.CACHE["current"] = SimpleNamespace(item=own[-1])
    new = newcomers()
    survivors = [one for one in gc.get_objects() if type(one) is Item]
    gc.unfreeze()
    assert not find_owners(SearchTarget(WARM), [], survivors, new, {id(own)}).owners


def test_frozen_objects_of_the_program_are_seen() -> None:
    gc.freeze()
    try:
        assert owner_of(lambda i: leaks.module_list(i, True)).name == "leaks.KEPT"
    finally:
        gc.unfreeze()


def test_entries_that_replaced_others_are_owned_by_nobody() -> None:
    """As many of the type went as came, and a container that has not grown holds only what replaced others."""
    leaks.KEPT.extend(Item() for _ in range(4))

    def replaced(i: int) -> None:
        leaks.KEPT[i % 4] = Item()

    def beside(i: int) -> None:
        replaced(i)
        leaks.LIVE_KEYS.append(Item())

    assert holders_of(replaced, Item).owners == ()
    assert owner_of(beside, Item, remaining=WARM).name == "leaks.LIVE_KEYS"


def test_two_containers_that_gained_it_together_are_both_named() -> None:
    def both(i: int) -> None:
        leaks.module_list(i, True)
        leaks.GROUPED["all"].append(bytes(3000))

    def same(i: int) -> None:
        leaks.module_list(i, True)
        leaks.GROUPED["all"].append(leaks.KEPT[-1])

    for hints in ({"rate": 2.0}, {"rate": None, "size": 6066.0}):
        holders = holders_of(both, **hints)
        assert holders.joint
        assert {owner.name for owner in holders.owners} == {"leaks.KEPT", "leaks.GROUPED[a str of 3]"}
        assert {owner.gained for owner in holders.owners} == {1.0}
    assert not holders_of(both, rate=None, size=3033.0).joint
    assert not holders_of(same, rate=2.0).joint
    leaks.GROUPED.clear()


class Registered:
    """Is entered in registries that forget it, or that keep it."""

    def __init__(self, keeps: bool) -> None:
        self.beside = Item()
        self.finalizer = weakref.finalize(self, self.close if keeps else self.beside.payload.hex)

    def close(self) -> None:
        """Refers to the object itself, which thus never goes."""


def test_a_registry_that_follows_what_is_alive_is_no_owner() -> None:
    def kept(_i: int) -> None:
        leaks.KEPT.append(Registered(keeps=False))

    for kind in (Registered, Item):
        assert owner_of(kept, kind).name == "leaks.KEPT"
    leaks.KEPT.clear()
    owner = owner_of(lambda _i: Registered(keeps=True), Registered)
    assert owner.name == "finalize._registry"
    assert own_owner(Culprit("object", owner=owner)) is None


def test_what_any_code_may_add_to_is_nobodys_own() -> None:
    class Handler(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[list[int]] = []

    # The path begins at the module that refers to it.
    handler, logger = Handler(), logging.getLogger("leaks")
    logger.addHandler(handler)
    try:
        others = owner_of(lambda _i: logger.addHandler(logging.NullHandler()))
        kept = owner_of(lambda _i: handler.kept.append([]))
    finally:
        logger.handlers.clear()
    assert others.name == "logging.getLogger('leaks').handlers"
    assert kept.name.endswith("].kept")
    assert [own_owner(Culprit("object", owner=owner)) for owner in (others, kept)] == [None, kept]


def test_what_the_interpreter_holds_is_named() -> None:
    def in_context() -> Owner:
        return owner_of(lambda _i: contextvars.ContextVar[list[int]]("request").set([1]))

    owner = contextvars.Context().run(in_context)
    assert owner.name == "context of the running thread"
    assert owner.steps[0].via.startswith("variable 'request'")
    before = signal.getsignal(signal.SIGUSR1)

    def handle() -> None:
        items: list[bytes] = []
        signal.signal(signal.SIGUSR1, lambda _number, _frame: items.append(bytes(100)))

    handle()
    try:
        owner = owner_of(lambda _i: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert owner.name == "handler of SIGUSR1 closure cell 'items'"


def test_what_this_package_fills_is_neither_an_owner_nor_a_reason() -> None:
    def fills(i: int) -> None:
        call_paths.is_standard(f"file {i}")
        vars(call_paths).setdefault("_table", {})[i] = [i]

    try:
        holders = holders_of(fills)
    finally:
        del call_paths._table  # type: ignore[attr-defined]
    assert (holders.owners, holders.reason) == ((), "no container or value grew at this rate")


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
    assert holders.reason == f"a list of {WARM + MORE} grows, and it is held outside Python objects (C)"


class Node:
    beside: Any = None


@pytest.mark.parametrize("kind", [None, Item])
def test_what_is_too_deep_to_be_reached_is_not_said_to_be_held_from_c(kind: type | None) -> None:
    first = Node()
    leaks.chain.beside = first
    for _ in range(20):
        first.beside = Node()
        first = first.beside
    first.beside = []
    del first
    holders = holders_of(lambda _i: append_to_last(), kind)
    assert holders.owners == ()
    found = "a list of 20 grows" if kind is None else "they are held by a list of 20"
    assert holders.reason == f"{found}, and no path to it was found within the limits of the search"


def append_to_last() -> None:
    node: Any = leaks.chain
    while type(node) is not list:
        node = node.beside
    node.append(Item())


class Sibling:
    def __init__(self, siblings: list[Any]) -> None:
        self.siblings = siblings
        self.children: list[Any] = []


def test_of_many_that_refer_to_a_container_those_that_are_old_are_followed_first() -> None:
    leaks.chain.beside = Sibling([])
    found = owner_of(lambda _i: add_siblings(), Sibling, rate=20.0)
    assert found.name == "leaks.chain.beside.children"


def add_siblings() -> None:
    children: Any = leaks.chain.beside.children  # type: ignore[attr-defined]
    children.extend([Sibling(children) for _ in range(20)])


def _call(function: Callable[[], None] | None) -> None:
    assert function is not None
    function()


def test_a_value_that_has_grown_by_too_little_is_passed_over() -> None:
    """What holds a text is no container, so it has no entries that could be of a type written in C."""
    report = SimpleNamespace(text="x" * 200)
    found = search(SearchTarget(iterations=10, size=10_000.0), [], [GrowingContainer(report, 5, report.text)], ())
    assert found.owners == ()
    assert found.reason == "no container or value grew at this rate"


@pytest.mark.parametrize(("gained", "reason"), [(10, "that"), (4, "or value")])
def test_containers_that_grew_but_are_not_shown_to_hold_it_are_not_denied(gained: int, reason: str) -> None:
    leaks.chain.beside = numbers = set(range(20))
    sought = SearchTarget(iterations=10, rate=1.0, identities=frozenset({("fd", "socket")}))
    grown = [GrowingContainer(numbers, gained)]
    del numbers
    found = search(sought, [], grown, ())
    assert found.owners == ()
    assert found.reason.startswith(f"no container {reason} grew at this rate")


def test_a_search_without_time_says_so_and_guesses_nothing() -> None:
    gc.freeze()
    kept = Item()
    kept.beside = Item()
    kept.beside.beside = Item()
    new = newcomers()
    gc.unfreeze()
    sought = SearchTarget(iterations=2, rate=1.0, in_python=True)
    found = search(sought, [kept.beside, kept.beside.beside], (), new, deadline=0.0)
    assert found == Holders((), "the search ran out of time")
    assert search(sought, [kept.beside, kept.beside.beside], (), new).reason != found.reason


def test_callbacks_of_atexit_are_counted_and_named_where_they_come_at_the_rate() -> None:
    def owners(**evidence: Any) -> list[tuple[str, float]]:
        return [(one.name, one.gained) for one in search(SearchTarget(10, **evidence), [], [], ()).owners]

    assert owners(rate=2.0, in_python=True, exits=10) == [("atexit", 1.0)]
    assert owners(rate=1.0, identities=frozenset({7}), exits=10) == [("atexit", 1.0)]
    assert owners(rate=1.0, in_python=True, exits=4) == []
    # Variables come more often than objects that the collector tracks: their table has few.
    context = contextvars.Context()
    grown = [GrowingContainer(context, 10)]
    assert search(SearchTarget(10, 0.4, in_python=True), [], grown, ()).owners == ()
    (owner,) = context.run(search, SearchTarget(10, 0.4, in_python=True), [], grown, ()).owners
    assert (owner.name, owner.holds) == ("context of the running thread", "10 × variable")
    # What C allocated is no part of a callback.
    assert owners(size=5000.0, exits=10) == []


def test_a_callback_of_atexit_comes_before_a_list_of_the_standard_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = list(range(1000, 1010))
    monkeypatch.setattr(colorsys, "listed", numbers, raising=False)
    grown = [GrowingContainer(numbers, 10)]
    sought = SearchTarget(10, 1.0, identities=frozenset(numbers), are_numbers=True)
    new = frozenset(map(id, numbers))
    assert [one.name for one in search(sought, [], grown, new).owners] == ["colorsys.listed"]
    assert [one.name for one in search(replace(sought, exits=10), [], grown, new).owners] == ["atexit"]


@pytest.mark.parametrize(("share", "added", "chosen"), [(79, 0, []), (81, 0, [81]), (72, 9, []), (72, 11, [72, 11])])
def test_owners_hold_four_fifths_of_the_survivors_and_each_adds_a_tenth(
    share: int, added: int, chosen: list[int]
) -> None:
    parts = range(share), range(share, share + added), range(share, share + added)
    holds = [owner_search._Hold(None, None, frozenset(part)) for part in parts if part]
    assert [len(one.reached) for one in owner_search._select_largest(holds, 100)] == chosen


def test_eight_owners_are_named() -> None:
    leaks.KEPT.extend([bytes(100) for _ in range(8)] for _ in range(20))
    growing = [GrowingContainer(one, 8) for one in leaks.KEPT]
    assert len(find_owners(SearchTarget(8, 1.0), growing).owners) == 8


@pytest.mark.parametrize(("newer", "may_fit"), [(1, True), (2, False)])
def test_memory_of_c_may_be_in_the_two_newest_entries(newer: int, *, may_fit: bool) -> None:
    """What C keeps for them has no size that Python could read."""
    container = GrowingContainer([zlib.compressobj(), *[b""] * newer], 3)
    assert owner_search._gain_may_fit(SearchTarget(3, size=100_000.0), container) is may_fit


def test_new_objects_that_lead_to_one_are_followed_for_ten_levels() -> None:
    chain: list[object] = [Item()]
    for _ in range(30):
        chain.append([chain[-1]])
    assert len(owner_search.with_referrers(chain[:1], frozenset(map(id, chain)))) == 1 + 10
