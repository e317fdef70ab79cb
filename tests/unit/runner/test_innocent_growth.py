"""The innocent causes of growth: each is built, and growth is not called a leak; taken away, it is."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_leakcheck.attribution.handles import take_identities
from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.probes.reference_counts import Account
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
