"""The search for a cause: what it makes of what it finds."""

from __future__ import annotations

import atexit
import ctypes
import dis
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from literal_readings import samples_of
from pytest_leakcheck.attribution.handles import take_identities
from pytest_leakcheck.attribution.heap.append_only import are_append_only
from pytest_leakcheck.attribution.heap.owner_search import Holders, SearchTarget
from pytest_leakcheck.attribution.tracing import tracer
from pytest_leakcheck.attribution.tracing.tracing_rounds import MOST_TRACED, Creation, Schedule
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.conclude_finding import Result
from pytest_leakcheck.model.culprit import Owner, Site
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.probes.garbage_collector import open_targets
from pytest_leakcheck.runner import diagnosis
from pytest_leakcheck.runner.measurement_run import MeasurementRun
from pytest_leakcheck.runner.phases import Phase, Search
from pytest_leakcheck.runner.sampler import Sampler
from pytest_leakcheck.runner.verdicts import Verdicts
from repeats import Clock, descriptors, open_null, repeat

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen", "impatient"),
]


def test_an_owner_without_a_container_is_named_and_the_search_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a running frame, which holds what leaks by a local variable: there is no container to follow."""
    owner = Owner("frame of serve()", "frame of serve()", (), "FileIO", 0.0)
    searched: list[SearchTarget] = []

    def search(sought: SearchTarget, *_rest: object, deadline: float) -> Holders:  # noqa: ARG001 - as the original
        searched.append(sought)
        return Holders((owner,))

    monkeypatch.setattr(diagnosis, "search", search)
    # It grows as it is read, so that no line of the program makes it grow.
    ticks = iter(range(1_000_000))
    result = repeat(int, Budget("gauge:ticks", 0), gauges={"ticks": lambda: next(ticks)})
    assert searched
    assert result.culprit
    assert result.culprit.owner == owner
    assert set(result.culprit.unresolved) == {"site"}
    assert "please report this" not in result.culprit.unresolved["site"]


def test_growth_that_ends_before_the_search_has_neither_line_nor_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What grows in the search in its place, such as the cache of a library, is a bystander."""
    kept: list[object] = []
    bystander: list[object] = []
    ended = False

    def work() -> None:
        (bystander if ended else kept).append([])

    def search(self: diagnosis.CauseSearch) -> bool:
        nonlocal ended
        ended = ends
        return done(self)

    done = diagnosis.CauseSearch.iteration_done
    monkeypatch.setattr(diagnosis.CauseSearch, "iteration_done", search)
    # The verdict stands, as if it had come a second time.
    monkeypatch.setattr(Verdicts, "can_withdraw", False)
    for ends in (True, False):
        ended = False
        gauges = {"kept": lambda: len(kept)}
        result = repeat(work, Budget("gauge:kept", 0), gauges=gauges)
        assert result.culprit
        if ends:
            reason = "+0.0 of +1.0/iter while traced: it depends on time, or has ended"
            assert result.culprit.unresolved == {"site": reason, "owner": reason}
            assert result.culprit.site is None
        else:
            assert result.culprit.site
            assert result.culprit.owner


# What the search does with what it has found.


def suspect(
    resource: str, slope: float, *, known: Sequence[object] = (), **columns: Sequence[int]
) -> diagnosis.CauseSearch:
    """Return a search for the cause of a leak that these readings show, without time for an iteration."""
    instruments = SimpleNamespace(
        folders={}, counter=lambda _name: lambda: 0, in_tree=lambda _name: lambda: 0, device_for=lambda _name: None
    )
    sampler = SimpleNamespace(
        samples=samples_of(columns),
        instruments=instruments,
        settling=SimpleNamespace(seconds_per_iteration=lambda: 0.001),
    )
    run = SimpleNamespace(
        ceiling=SimpleNamespace(lift=lambda: None),
        verdicts=SimpleNamespace(red=True),
        innocent=SimpleNamespace(owners=SimpleNamespace(identities=frozenset), account=None),
        plan=SimpleNamespace(test="t"),
        causes=SimpleNamespace(of=lambda _resource: known),
    )
    verdict = Verdict(resource, "leak", slope)
    return diagnosis.CauseSearch(cast("Any", run), cast("Any", sampler), verdict, take_identities(), 0.0)


def rising(to: int) -> list[int]:
    return [to * row // 100 for row in range(101)]


@pytest.mark.parametrize(("shown", "past"), [(4_000, True), (6_000, False)])
def test_resident_memory_is_that_of_python_if_exact_counters_show_half_of_it(shown: int, *, past: bool) -> None:
    search = suspect("rss", 10_000, rss=rising(1_000_000), heap=rising(100 * shown), block=rising(0))
    assert search._is_past_malloc() is past


@pytest.mark.parametrize(("threads", "followed"), [(960, ["thread"]), (930, [])])
def test_resources_that_grow_alike_within_a_twentieth_have_one_cause(
    threads: int, followed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(diagnosis, "things_of", lambda name, *_: tried.append(name))
    search = suspect("fd", 10.0, fd=rising(1000), thread=rising(threads), process=rising(0))
    assert list(search._follow_companion(Creation())) == []
    assert tried == followed


@pytest.mark.parametrize(("each", "rate"), [(40, 0.4), (70, None)])
def test_what_grows_in_fewer_than_half_of_the_iterations_is_searched_for_at_its_own_rate(
    each: int, rate: float | None
) -> None:
    search = suspect("object", each / 100, object=rising(each))
    assert search._describe_sought(Creation()).rate == rate


@pytest.mark.parametrize(("size", "listed"), [(50, False), (200, True)])
def test_a_kind_of_object_is_listed_that_holds_a_tenth_of_the_bytes(size: int, *, listed: bool) -> None:
    search = suspect("heap", 1400.0, heap=rising(140_000))
    search._schedule.used = 10
    came = [Box(size) for _ in range(10)]
    kinds = search._retained_kinds(came, Holders(()), (), {id(Box): 10})
    assert [one.what for one in kinds] == (["bytes"] if listed else [])


class Box:
    def __init__(self, size: int) -> None:
        self.content = os.urandom(size)


def test_at_most_three_causes_of_one_container_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    filled: list[object] = []
    tried: list[object] = []

    def iterations(*_: object) -> Iterator[int]:
        yield 0
        filled.append(0)

    def confirm(_search: diagnosis.CauseSearch, cause: object, *_: object) -> Iterator[None]:
        tried.append(cause)
        yield from ()

    monkeypatch.setattr(Schedule, "iterations", iterations)
    monkeypatch.setattr(diagnosis, "find_container", lambda _owner: filled)
    monkeypatch.setattr(diagnosis.CauseSearch, "_confirm", confirm)
    search = suspect("object", 1.0, known=[SimpleNamespace(owner=None)] * 10, object=rising(100))
    assert list(search._recall()) == [None]
    assert len(tried) == 3


@pytest.mark.parametrize(("left", "sought"), [(8, True), (4, False)])
def test_what_stores_in_an_owner_is_searched_for_while_six_iterations_are_left(
    left: int, sought: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Holders] = []
    holders = Holders((Owner("KEPT", "KEPT", (), "list", 0.0),))

    def find_keepers(_search: diagnosis.CauseSearch, some: Holders) -> Iterator[None]:
        found.append(some)
        yield from ()

    monkeypatch.setattr(diagnosis.CauseSearch, "_search_holders", lambda *_: holders)
    monkeypatch.setattr(diagnosis.CauseSearch, "_find_keepers", find_keepers)
    search = suspect("object", 1.0, object=rising(100))
    search._schedule.used = MOST_TRACED - left
    assert list(search._find_owner(cast("Any", None), Creation(), frozenset())) == []
    assert found == [holders] * sought


@pytest.mark.parametrize(("objects", "counted"), [(2_000_000, True), (3_000_000, False)])
def test_objects_are_counted_if_two_microseconds_for_each_are_less_than_five_seconds(
    objects: int, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    collector = SimpleNamespace(get_objects=lambda: range(objects), unfreeze=int, freeze=int)
    monkeypatch.setattr(diagnosis, "gc", collector)
    monkeypatch.setattr(diagnosis, "Census", dict)
    monkeypatch.setattr(diagnosis, "has_frozen", lambda: False)
    before, _earlier, found = suspect("object", 1.0, object=rising(100))._count_objects()
    assert (before is not None, found) == (counted, objects)


KEPT: list[int] = []


def test_the_owner_is_named_where_too_many_calls_come_before_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "_MAX_DURATION", 0.0)
    try:
        culprit = repeat(lambda: KEPT.append(open_null()), Budget("fd")).culprit
    finally:
        while KEPT:
            os.close(KEPT.pop())
    assert culprit
    assert culprit.unresolved == {"site": "too many calls to trace all of them"}
    assert culprit.owner
    assert culprit.owner.name.endswith("KEPT")


def searched_at(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object], **effort: Any) -> tuple[Result, list[int]]:
    """Repeat work that takes no time, and return after how many iterations a cause was searched for."""
    Clock(monkeypatch)
    found: list[int] = []

    class Noting(diagnosis.CauseSearch):
        def __init__(self, run: MeasurementRun, sampler: Sampler, *rest: Any, **known: Any) -> None:
            found.append(sampler.samples.n)
            super().__init__(run, sampler, *rest, **known)

    monkeypatch.setattr(diagnosis, "CauseSearch", Noting)
    return repeat(work, Budget("fd"), min_time=3, **effort), found


def test_the_cause_is_searched_for_while_there_is_little_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with descriptors() as kept:
        result, found = searched_at(monkeypatch, lambda: kept.append(open_null()))
    assert found == [17]
    (verdict,) = result.verdicts
    assert (verdict.outcome, verdict.slope) == ("leak", 1.0)
    assert result.culprit
    assert result.culprit.site
    assert result.culprit.owner
    # What is held was listed at the verdict.
    (held,) = result.held["fd"]
    assert held.count == verdict.iterations > 200


def test_what_becomes_full_after_its_cause_was_found_is_no_leak(
    monkeypatch: pytest.MonkeyPatch, begun: list[str]
) -> None:
    with descriptors() as kept:
        result, found = searched_at(monkeypatch, lambda: kept.append(open_null()) if len(kept) < 110 else None)
    assert found == [17]
    (verdict,) = result.verdicts
    assert (verdict.outcome, result.culprit, result.held) == ("ok", None, {})
    assert begun[-4:] == ["Measure", "EarlySearch", "Measure", "Judged"]


def test_growth_that_ends_after_its_cause_was_found_must_recur(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the very look that calls it a leak."""
    at: list[int] = []
    confirm = diagnosis.CauseSearch.confirm

    def ending(self: diagnosis.CauseSearch, *rest: Any) -> None:
        at.append(0)
        confirm(self, *rest)

    monkeypatch.setattr(diagnosis.CauseSearch, "confirm", ending)
    with descriptors() as kept:
        result, found = searched_at(monkeypatch, lambda: None if at else kept.append(open_null()))
    assert (found, len(at)) == ([17], 1)
    (verdict,) = result.verdicts
    assert verdict.outcome == "ok"
    assert "grew at first, and stopped after" in verdict.reason


def test_a_number_of_iterations_is_not_interrupted_by_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with descriptors() as kept:
        _result, found = searched_at(monkeypatch, lambda: kept.append(open_null()), iterations=40)
    assert found == [40]


class Kept:
    chain: Any = None


def drop(_kept: list[object]) -> None: ...


def register_for_forks() -> None:
    def at_exit() -> None: ...

    atexit.register(at_exit)
    atexit.unregister(at_exit)
    os.register_at_fork(after_in_child=lambda: None)


def register_for_exit() -> None:
    atexit.register(drop, [])


def register_finalizer() -> None:
    weakref.finalize(Kept, [].clear).atexit = False


def wrap_the_last_one() -> None:
    before = Kept.chain
    Kept.chain = lambda: before


def pair_with_the_last_one() -> None:
    Kept.chain = (Kept.chain, [])


@pytest.mark.parametrize(
    ("work", "owner"),
    [
        (register_for_forks, "os.register_at_fork"),
        (register_for_exit, "atexit"),
        (register_finalizer, "finalize._registry"),
        (wrap_the_last_one, "Kept.chain"),
        (pair_with_the_last_one, "Kept.chain"),
    ],
)
def test_what_the_interpreter_or_a_chain_keeps_has_an_owner(
    work: Callable[[], object], owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kept, "chain", None)
    culprit = repeat(work, Budget("object"), iterations=20).culprit
    atexit.unregister(drop)
    assert culprit
    assert culprit.owner
    assert culprit.owner.name == owner


class Event: ...


THINGS: set[object] = set()
HISTORY: list[Event] = []
SAMPLES: list[float] = []
RETAINED: list[object] = []
ROWS: dict[int, object] = {}
# As C code that forgets to give a reference back.
retain_in_c = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))


def retain_beside_a_history() -> None:
    HISTORY.append(Event())
    del HISTORY[:-1000]
    RETAINED.extend([] for _ in range(10))


def retain_rows_beside_a_history() -> None:
    HISTORY.append(Event())
    del HISTORY[:-1000]
    ROWS.update((1000 + len(ROWS) + at, "x" * (300 + at)) for at in range(5))


def lose_objects_beside_samples() -> None:
    SAMPLES.append(len(SAMPLES) / 7)
    for _ in range(30):
        retain_in_c([])


def lose_bytes_beside_a_history() -> None:
    HISTORY.append(Event())
    del HISTORY[:-1000]
    retain_in_c(bytes(50_000))


def retain_in_four_places() -> None:
    HISTORY.append(Event())
    RETAINED.append(SimpleNamespace())
    ROWS[len(ROWS)] = []
    THINGS.add(itertools.repeat([]))


def retain_in_an_array() -> None:
    # NumPy shows the collector none of them.
    column = np.empty(20, dtype=object)
    for at in range(20):
        column[at] = []
    RETAINED.append(column)


@pytest.mark.parametrize(
    ("work", "resource", "owner"),
    [
        (retain_beside_a_history, "object", "RETAINED"),
        (retain_beside_a_history, "block", "RETAINED"),
        (retain_rows_beside_a_history, "block", "ROWS"),
        (lose_objects_beside_samples, "object", ""),
        (lose_bytes_beside_a_history, "heap", ""),
        (retain_in_four_places, "object", "THINGS"),
        (retain_in_an_array, "object", "RETAINED"),
        (retain_in_an_array, "block", "RETAINED"),
    ],
)
def test_what_only_grows_beside_the_owner_is_not_named(work: Callable[[], object], resource: str, owner: str) -> None:
    for kept in (HISTORY, SAMPLES, RETAINED, ROWS, THINGS):
        kept.clear()
    culprit = repeat(work, Budget(resource), iterations=20).culprit
    assert culprit
    assert culprit.resource == resource
    assert (culprit.owner.name.rpartition(".")[2] if culprit.owner else "") == owner
    assert bool(owner) != ("owner" in culprit.unresolved)


def test_only_the_open_of_os_makes_a_mere_number() -> None:
    """That of PyAV, for example, returns an object, which may be what the owner holds."""

    def of_os(path: str) -> int:
        return os.open(path, os.O_RDONLY)

    def of_library(path: str) -> object:
        return ctypes.open(path)  # type: ignore[attr-defined]  # never called

    site = Site(__file__, 1, "serve", "open()")
    for function, is_number in ((of_os, True), (of_library, False)):
        code = function.__code__
        *_, last = (one.offset for one in dis.get_instructions(code) if one.opname == "CALL")
        assert diagnosis._makes_number(Creation((site,), code=code, lasti=last)) == is_number
    assert not diagnosis._makes_number(Creation((site,)))
    assert diagnosis._makes_number(Creation((replace(site, call="dup()"),)))


ONLY_APPENDED: list[int] = []


def keep_for_good() -> None:
    ONLY_APPENDED.append(open_null())


def lose() -> None:
    open_null()


def test_what_is_only_added_to_or_lost_is_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    # The frames of the test itself are no harness here, and have conditions.
    monkeypatch.setattr(diagnosis, "are_append_only", lambda owners, path: are_append_only(owners, path[-1:]))
    before = open_targets().keys()
    for work, owner in ((keep_for_good, "APPENDED"), (lose, "")):
        result, found = searched_at(monkeypatch, work)
        (verdict,) = result.verdicts
        assert (verdict.outcome, verdict.iterations, found) == ("leak", 17, [17])
        assert result.culprit
        assert (result.culprit.owner.name.rpartition("_")[2] if result.culprit.owner else "") == owner
    for descriptor in open_targets().keys() - before:
        with suppress(OSError):
            os.close(descriptor)


@pytest.mark.parametrize("settles", [True, False])
def test_memory_of_unknown_cause_is_judged_once_more(settles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis.CauseSearch, "has_found", property(lambda _self: False))
    kept: list[object] = []
    withdraw = Search._withdraw
    withdrawn: list[int] = []

    def note(self: Search) -> Phase:
        withdrawn.append(0)
        return withdraw(self)

    monkeypatch.setattr(Search, "_withdraw", note)
    result = repeat(lambda: None if settles and withdrawn else kept.append([]), Budget("object"))
    (verdict,) = result.verdicts
    assert len(withdrawn) == 1
    assert verdict.outcome == ("ok" if settles else "leak")
