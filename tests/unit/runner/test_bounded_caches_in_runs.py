"""Caches with a bound, judged as they fill: never red by themselves, and a leak beside them is found with its own rate."""

from __future__ import annotations

import functools
import itertools
import mmap
import re
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.model.finding import RED, Outcome, Verdict
from pytest_leakcheck.runner.bounded_caches import EmptiedCaches
from repeats import Clock, Work, descriptors, open_null, repeat

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen", "impatient"),
    # What is evicted is closed by being dropped.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

EVERYTHING = [Budget(name, explicit=False) for name in ("process", "fd", "thread", "task", "heap", "object", "block")]


def red(work: Work) -> Verdict | None:
    verdicts = repeat(work, *EVERYTHING).verdicts
    return next((verdict for verdict in verdicts if verdict.outcome in RED), None)


def cached_files(bound: int) -> Work:
    files: deque[Any] = deque(maxlen=bound)
    return lambda: files.append(open("/dev/null"))  # noqa: PTH123 - kept, and closed when it is evicted


def cached_lists(bound: int) -> Work:
    numbers = itertools.count(10_000)

    @functools.lru_cache(bound)
    def load(number: int) -> list[int]:
        return [number]

    return lambda: load(next(numbers))


def kept_lists(count: int) -> Work:
    kept, numbers = list[list[int]](), itertools.count()

    def keep() -> None:
        if next(numbers) < count:
            kept.append([0])

    return keep


# Each was called a leak: a look comes when it has just become full, while the series still counts as growing.
@pytest.mark.parametrize("bound", [20, 60, 135])
def test_a_cache_of_files_that_has_just_become_full_is_no_leak(bound: int, begun: list[str]) -> None:
    assert red(cached_files(bound)) is None
    assert begun[-3:] == ["Measure", "Measure", "Judged"]


@pytest.mark.parametrize("bound", [220, 340, 512])
def test_a_cache_of_results_that_has_just_become_full_is_no_leak(bound: int) -> None:
    assert red(cached_lists(bound)) is None


def test_a_level_is_still_measured_from_the_first_start() -> None:
    """The series begins again when the cache is full, and what it holds by then counts."""
    files: deque[Any] = deque(maxlen=20)
    (verdict,) = repeat(lambda: files.append(open("/dev/null")), Budget("fd", 0)).verdicts  # noqa: PTH123, SIM115
    assert (verdict.outcome, verdict.reason) == ("over_budget", "settles at +17, 0 allowed")


@pytest.mark.parametrize(("allowed", "outcome"), [(10, "over_budget"), (50, "ok")])
@pytest.mark.parametrize("fill", [cached_lists, kept_lists])
def test_a_level_that_is_passed_once_stays_passed(
    fill: Callable[[int], Work], allowed: int, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing grows any more when the cause is searched for, so none is found."""
    Clock(monkeypatch)
    (verdict,) = repeat(fill(20), Budget("object", allowed), min_time=2).verdicts
    assert verdict.outcome == outcome


@pytest.mark.parametrize(("allowed", "outcome"), [(3, "over_budget"), (None, "ok")])
def test_a_level_that_was_reached_before_a_leak_is_withdrawn_counts(allowed: int | None, outcome: str) -> None:
    opened = itertools.count()
    with descriptors() as kept:

        def work() -> None:
            if next(opened) < 18:
                kept.append(open_null())

        (verdict,) = repeat(work, Budget("fd", allowed)).verdicts
    assert verdict.outcome == outcome


@pytest.mark.parametrize("bound", range(17, 24))
def test_what_was_reached_until_a_cache_is_full_counts_once(bound: int) -> None:
    caches, opened = cached_lists(bound), itertools.count()

    with descriptors() as kept:

        def work() -> None:
            caches()
            if next(opened) < 15:
                kept.append(open_null())

        verdicts = repeat(work, Budget("object", explicit=False), Budget("fd", 20), min_time=2).verdicts
    assert {one.resource: one.outcome for one in verdicts} == {"object": "ok", "fd": "ok"}


def test_a_leak_that_begins_when_the_cache_is_full_is_found() -> None:
    kept: list[Any] = []
    fill, done = cached_files(30), itertools.count()

    def work() -> None:
        fill()
        if next(done) > 30:
            kept.append(open("/dev/null"))  # noqa: PTH123, SIM115 - the leak

    verdict = red(work)
    assert verdict is not None
    assert (verdict.resource, verdict.outcome, verdict.slope) == ("fd", "leak", 1.0)


@pytest.mark.parametrize(
    ("patterns", "kept_bytes", "outcome"),
    [(24, 2000, "leak"), (24, 0, "ok"), (10_000, 0, "inconclusive"), (10_000, 20_000, "leak")],
)
def test_patterns_explain_no_more_than_they_hold(
    patterns: int, kept_bytes: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them outweigh a leak at an early look, of which the later growth has more."""
    clock, kept, numbers = Clock(monkeypatch), list[bytes](), itertools.count()

    def work() -> None:
        clock.take(0.004)
        if (number := next(numbers)) < patterns:
            re.compile("|".join(f"{number}a{each}" for each in range(100)))
        if kept_bytes:
            kept.append(bytes(kept_bytes))

    re.purge()
    (verdict,) = repeat(work, Budget("heap")).verdicts
    assert verdict.outcome == outcome


@pytest.mark.laboratory
def test_mapped_memory_that_falls_as_few_entries_are_emptied_explains_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two patterns an arena of the interpreter's allocator may go: 1 MiB, more than the leak has come to by then."""
    arena: list[mmap.mmap] = []

    def empty(_caches: EmptiedCaches) -> list[int]:
        while arena:
            arena.pop().close()
        return [500, 500]

    monkeypatch.setattr(EmptiedCaches, "empty", empty)
    kept: list[mmap.mmap] = []

    def work() -> None:
        kept.append(mmap.mmap(-1, 4096))

    arena.append(mmap.mmap(-1, 1 << 20))
    (verdict,) = repeat(work, Budget("mmap", explicit=False)).verdicts
    while kept:
        kept.pop().close()
    assert not arena
    assert verdict.outcome == "leak"

    def fixed() -> None:
        mmap.mmap(-1, 4096).close()

    assert repeat(fixed, Budget("mmap", explicit=False)).verdicts[0].outcome == "ok"


class Statements:
    """A cache in plain Python, with a bound if it has one."""

    def __init__(self, most: int) -> None:
        self.kept: dict[int, list[object]] = {}
        self.most = most

    def put(self, key: int) -> None:
        if len(self.kept) >= self.most:
            del self.kept[next(iter(self.kept))]
        self.kept[key] = [[]]


class Sessions:
    """What is opened, and removed only by a call of `close`."""

    def __init__(self) -> None:
        self.kept: dict[int, list[object]] = {}

    def put(self, key: int) -> None:
        self.kept[key] = [[]]

    def close(self, key: int) -> None:
        self.kept.pop(key)


@pytest.mark.parametrize(
    ("holder", "seconds", "phase", "expected"),
    [
        (Statements(300), 0.014, "EarlySearch", ("ok", "")),
        # As it is not full, the level at which it is full is judged.
        (Statements(2_000), 0.014, "EarlySearch", ("ok", "HOLDER.kept is kept within its bound by Statements.put(): ")),
        (Statements(2_000), 0.0, "Search", ("ok", "HOLDER.kept is kept within its bound by Statements.put(): ")),
        # More than 500 entries are no cache, unless its bound is known.
        (Sessions(), 0.014, "EarlySearch", ("leak", "+2.0/iter sustained over ")),
    ],
)
def test_what_the_program_removes_entries_from_fills_up_to_its_bound(  # noqa: PLR0917 - what is given and what is seen
    holder: Any,
    seconds: float,
    phase: str,
    expected: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    begun: list[str],
) -> None:
    """The iterations after which memory is judged, 229 if they are slow, fill none of these."""
    clock, numbers = Clock(monkeypatch), itertools.count()
    monkeypatch.setitem(globals(), "HOLDER", holder)

    def work() -> None:
        clock.take(seconds)
        holder.put(next(numbers))

    (verdict,) = repeat(work, Budget("object"), min_time=3 if seconds else 0).verdicts
    outcome, reason = expected
    assert (verdict.outcome, reason in verdict.reason, phase in begun) == (outcome, True, True)
    assert outcome == "ok" or len(holder.kept) > 500
