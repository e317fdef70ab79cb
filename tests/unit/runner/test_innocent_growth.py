"""The innocent causes of growth: each is built, and growth is not called a leak; taken away, it is."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from literal_readings import samples_of
from pytest_leakcheck.attribution.handles import take_identities
from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.judge.judge_series import Hint
from pytest_leakcheck.model.finding import Verdict
from pytest_leakcheck.probes.reference_counts import Account
from pytest_leakcheck.runner import innocent_growth as module
from pytest_leakcheck.runner.bounded_caches import CacheFill
from pytest_leakcheck.runner.innocent_growth import InnocentGrowth
from repeats import Work, repeat, verdict_on

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen", "impatient"),
]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this test's own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def every(seconds: float, work: Work) -> Iterator[None]:
    """Another thread, which does this work all the time."""
    end = threading.Event()

    def loop() -> None:
        while not end.wait(seconds):
            work()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


# How much each cause may explain.


class Suspected:
    """A measurement of one counter that is suspected to leak; `seconds` is how long an iteration takes."""

    def __init__(self, resource: str, readings: Iterable[int], *, slope: float = 1.0, seconds: float = 0.001) -> None:
        self.suspicion = Verdict(resource, "leak", slope)
        self.rests: list[float] = []
        self.settling = SimpleNamespace(
            seconds_per_iteration=lambda: seconds, rest=self._rest, settle=lambda suspected: suspected, waited_long=0.0
        )
        self.sampler = cast(
            "Any",
            SimpleNamespace(
                samples=samples_of({resource: list(readings)}),
                settling=self.settling,
                instruments=SimpleNamespace(folders={}),
                children=1,
                patient=False,
            ),
        )
        self.innocent = InnocentGrowth({})
        self.innocent.watch()
        self.innocent.start(take_identities())

    def _rest(self, seconds: float, _resource: str) -> int:
        self.rests.append(seconds)
        return 0

    def fill(self, holds: float, *, full: bool = False) -> None:
        """Have a cache that has gained entries which hold so much, and has room for many more."""
        entries = round(holds)
        found = CacheFill("deque(maxlen)", holds, entries, full, left=100_000, at_most=100_000)
        self.innocent.owners = cast("Any", SimpleNamespace(filling=lambda *_: found))

    def look(self, cause: str) -> Hint | None:
        look = getattr(self.innocent, f"_look_{cause}")
        return cast("Hint | None", look(self.sampler, self.suspicion, 200))


@pytest.mark.parametrize(("holds", "explains"), [(7, False), (15, True)])
def test_a_cache_that_holds_a_tenth_of_the_growth_explains_that_part(holds: int, *, explains: bool) -> None:
    suspected = Suspected("object", range(101))
    suspected.fill(holds)
    hint = suspected.look("at_caches")
    assert (hint.rate if hint else 0.0) == (holds / 100 if explains else 0.0)


@pytest.mark.parametrize(("holds", "at_most"), [(60, None), (90, 100_010)])
def test_a_cache_that_holds_four_fifths_of_the_growth_bounds_it(holds: int, at_most: float | None) -> None:
    suspected = Suspected("object", range(101))
    suspected.fill(holds)
    hint = suspected.look("at_caches")
    assert hint
    assert hint.at_most == at_most


def test_a_series_begins_again_for_eight_caches_that_become_full() -> None:
    suspected = Suspected("object", range(101))
    suspected.fill(100, full=True)
    hints = [suspected.look("at_caches") for _ in range(20)]
    assert [bool(hint and hint.ended) for hint in hints] == [True] * 8 + [False] * 12


def test_a_series_begins_again_twice_for_what_ends_late() -> None:
    suspected = Suspected("fd", range(101))
    suspected.settling.standing, suspected.settling.accept = lambda _name: 0, lambda: None
    assert [suspected.look("for_late_ends") for _ in range(4)] == [Hint(ended=True)] * 2 + [None] * 2


@pytest.mark.parametrize(
    ("seconds", "slope", "rest"),
    [(0.001, 1.0, 0.02), (0.03, 1.0, 0.3), (0.03, 0.5, 0.6), (0.03, 8.0, 0.3), (5.0, 1.0, 1.0)],
)
def test_a_rest_is_as_long_as_ten_units_or_ten_iterations_take_up_to_a_second(
    seconds: float, slope: float, rest: float
) -> None:
    suspected = Suspected("object", range(101), slope=slope, seconds=seconds)
    suspected.look("in_background")
    assert suspected.rests == [pytest.approx(rest)]


def test_a_measurement_rests_for_four_seconds_at_most() -> None:
    suspected = Suspected("object", range(101), seconds=5.0)
    for _ in range(20):
        suspected.look("in_background")
    assert suspected.rests == [1.0] * 4


@pytest.mark.parametrize(("resource", "each"), [("heap", 1024), ("object", 8), ("block", 16)])
def test_a_tracer_of_coverage_explains_up_to_a_kilobyte(
    resource: str, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracers = 0
    monkeypatch.setattr(module, "tracers_of_coverage", lambda: tracers)
    exact, beyond = Suspected(resource, [0, 100 * each]), Suspected(resource, [0, 100 * each + 1])
    tracers = 100
    assert exact.look("at_tracers")
    assert not beyond.look("at_tracers")


@pytest.mark.parametrize(
    ("caches", "share", "explained"), [(12, 0.5, True), (20, 0.5, False), (12, 0.015, False), (12, 0.03, True)]
)
def test_sixteen_caches_of_malloc_for_threads_that_do_a_fiftieth_of_the_work_explain_uneven_growth(
    caches: int, share: float, explained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "thread_cache_bytes", lambda: 1000)
    suspected = Suspected("heap", [0] * 50 + [1000 * caches] * 50)
    suspected.settling.share_of_other_threads = lambda: share
    assert bool(suspected.look("at_thread_caches")) is explained


@pytest.mark.parametrize(("seconds", "within"), [(0.001, 100.0), (0.5, 20.0)])
def test_an_iteration_in_production_is_taken_to_last_a_tenth_of_a_second(
    seconds: float, within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = SimpleNamespace(seconds=10.0, held=(), thread=1)
    monkeypatch.setattr(module, "find_timers", lambda _threads: [timer])
    hint = Suspected("heap", [0, 100], seconds=seconds).look("at_timers")
    assert hint
    assert hint.within == within


@pytest.mark.parametrize(("change", "explained"), [(5, 0), (7, 7)])
def test_what_holds_references_is_compared_once_six_have_come(change: int, explained: int) -> None:
    obj = object()
    suspected = Suspected("object", [0, change])
    suspected.innocent.account = Account(obj, change=0, held=0, blocks=0)
    suspected.sampler.account = lambda *_: Account(obj, change, held=change, blocks=0)
    suspected.sampler.instruments.references = SimpleNamespace(
        find_changed=lambda: 0, object=lambda _at: obj, change=lambda _at: change
    )
    assert suspected.innocent.explain_references(suspected.sampler, 1.0).replaced == explained


# Shared folders.


@pytest.mark.parametrize(("budget", "left", "said"), [(0, 1, "1 entry"), (None, 1, ""), (None, 30, "15 entries")])
def test_what_no_event_reports_is_in_doubt_if_it_would_be_too_much(
    temporary: Path, budget: int | None, left: int, said: str
) -> None:
    numbers = iter(range(1000))

    def work() -> None:
        if 5 <= (number := next(numbers)) < 5 + left:
            # As C code does, or another process.
            os.mkfifo(temporary / f"pipe-{number}")

    (verdict,) = repeat(work, Budget("disk", budget)).verdicts
    assert verdict.outcome == ("inconclusive" if said else "ok")
    assert verdict.reason.startswith(f"{said} of unknown origin in {temporary}: " if said else "one-off +1")
    assert not said or verdict.advice.endswith("a private TMPDIR, or --leakcheck-isolate")


def test_a_file_where_nothing_is_listed_counts_under_a_budget_and_is_mentioned_without_one(temporary: Path) -> None:
    folder = temporary / "below"
    folder.mkdir()
    numbers = iter(range(1000))

    def leave() -> None:
        (folder / f"report-{next(numbers)}").touch()

    (leaky,) = repeat(leave, Budget("disk", 0)).verdicts
    assert (leaky.outcome, leaky.slope) == ("leak", 1.0)
    (unnamed,) = repeat(leave, default_budget("disk")).verdicts
    assert (unnamed.outcome, unnamed.floor) == ("ok", None)
    assert unnamed.reason.endswith(" the temporary folder: disk_budget() counts such files")
    (fixed,) = repeat((folder / "report").touch, Budget("disk", 0)).verdicts
    assert (fixed.outcome, fixed.floor) == ("ok", 0.5)


def test_what_others_make_meanwhile_does_not_hide_a_leak(temporary: Path) -> None:
    numbers = iter(range(1000))

    def leave() -> None:
        os.mkfifo(temporary / f"noise-{next(numbers)}")
        tempfile.mkdtemp(prefix="part-")
        tempfile.mkdtemp(prefix="part-")

    leaky = repeat(leave, Budget("disk", 0))
    assert [(one.outcome, one.slope) for one in leaky.verdicts] == [("leak", 2.0)]
    assert [held.what for held in leaky.held["disk"]] == [f"{temporary}/part-*"]


# Something else at work.


def test_what_grows_also_while_the_test_rests_is_not_its_leak() -> None:
    kept: list[bytearray] = []
    with every(0.001, lambda: kept.append(bytearray(100_000))):
        result = repeat(lambda: time.sleep(0.001), Budget("heap"))
    (verdict,) = result.verdicts
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("also grows while the test is paused, +")
    assert "--leakcheck-isolate" in verdict.advice
    kept.clear()


def test_a_thread_that_starts_in_the_first_iteration_and_works_on_its_own_is_not_the_tests_leak() -> None:
    """As that of a fixture of a module, or of a library that starts one when it is first used."""
    samples: list[float] = []
    end = threading.Event()
    threads: list[threading.Thread] = []

    def loop() -> None:
        while not end.wait(0.001):
            samples.append(time.time())

    def work() -> None:
        if not threads:
            threads.append(threading.Thread(target=loop))
            threads[0].start()
        time.sleep(0.001)

    result = repeat(work, Budget("block"))
    end.set()
    threads[0].join()
    (verdict,) = result.verdicts
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith("also grows while the test is paused, +")


# Other kinds.


def test_arrows_pool_is_judged_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [0]
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(total_allocated_bytes=lambda: held[0]))

    def work() -> None:
        held[0] += 4096

    assert [(one.outcome, one.slope) for one in repeat(work, Budget("arrow")).verdicts] == [("leak", 4096.0)]
    assert [one.outcome for one in repeat(int, Budget("arrow")).verdicts] == ["ok"]


def test_tracers_of_coverage_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tracers: list[bytearray] = []
    current = SimpleNamespace(_collector=SimpleNamespace(tracers=tracers))
    coverage = SimpleNamespace(Coverage=SimpleNamespace(current=lambda: current))
    monkeypatch.setitem(sys.modules, "coverage", coverage)
    (verdict,) = repeat(lambda: tracers.append(bytearray(700)), Budget("heap")).verdicts
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == "coverage.py keeps a tracer for each thread: 563 since the start; measure without coverage"
    kept: list[bytearray] = []
    (verdict,) = repeat(lambda: kept.append(bytearray(700)), Budget("heap")).verdicts
    assert verdict.outcome == "leak", verdict


@pytest.mark.parametrize("leaks", [True, False])
def test_a_cache_of_freed_blocks_that_the_warm_up_has_emptied_fills_without_a_verdict(leaks: bool) -> None:
    libc = ctypes.PyDLL(None)
    libc.malloc.restype = libc.calloc.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.calloc.argtypes = [ctypes.c_size_t], [ctypes.c_size_t, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    sizes, warmup = tuple(range(24, 1033, 16)) * 7, 3
    calls, kept = 0, list[int]()

    def work() -> None:
        nonlocal calls
        calls += 1
        if calls == warmup:
            kept.extend(libc.malloc(size) for size in sizes)
        if calls > warmup:
            # `calloc` takes no block from the cache, and `free` puts one into it.
            block = libc.calloc(1, sizes[calls % len(sizes)])
            if not leaks:
                libc.free(block)
            else:
                kept.append(block)

    verdict = verdict_on(work, Budget("heap"), warmup=warmup)
    assert verdict.outcome == ("leak" if leaks else "ok")
    for block in kept:
        libc.free(block)


# References.


def test_what_held_an_object_in_an_earlier_series_is_compared_with_nothing() -> None:
    innocent = InnocentGrowth({})
    innocent.watch()
    innocent.account = Account(innocent, change=17, held=17, blocks=0)
    innocent.start(take_identities())
    assert innocent.account is None
