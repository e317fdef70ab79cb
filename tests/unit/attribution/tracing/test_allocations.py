"""The line whose allocations are retained: of an object that generated code fills, the line that creates it."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_leakcheck.attribution.call_paths import read_path
from pytest_leakcheck.attribution.tracing import allocations as allocations_module
from pytest_leakcheck.attribution.tracing.allocations import (
    Allocations,
    Composition,
    Retention,
    culprit_of,
    tracing_memory,
)
from pytest_leakcheck.model.culprit import Site

TEST = ("/project/test_it.py", 10)
CREATES = ("/project/session.py", 20)
DEFAULT = ("/project/session.py", 5)
GENERATED = ("<string>", 3)


def kept(blocks: float, *lines: tuple[str, int]) -> Retention:
    return Retention(tuple(Site(file, line, "") for file, line in (TEST, *lines)), blocks, blocks * 100)


def line_of(*some: Retention, slope: float) -> tuple[str, int] | None:
    place = culprit_of(some, slope, by_size=False)
    where = read_path(place.path) if place is not None else None
    return None if where is None else (where.site.file, where.site.line)


def test_the_default_of_a_field_is_only_a_part_of_the_object() -> None:
    parts = kept(4, CREATES, GENERATED, DEFAULT), kept(5, CREATES, GENERATED)
    assert line_of(*parts, slope=5) == CREATES
    # The default alone makes nearly all of the growth.
    assert line_of(kept(6, CREATES, GENERATED, DEFAULT), kept(1, CREATES, GENERATED), slope=6) == DEFAULT


def test_without_generated_code_the_line_that_makes_most_is_named() -> None:
    other = ("/project/session.py", 21)
    assert line_of(kept(6, CREATES), kept(4, other), slope=10) == CREATES
    assert line_of(kept(4, CREATES), kept(4, other), slope=10) is None


def test_of_lines_that_allocate_equally_much_the_caller_that_makes_the_whole_is_named() -> None:
    init, stored, elsewhere = ("/project/view.py", 5), ("/project/view.py", 6), ("/project/topic.py", 9)
    publishes = ("/project/session.py", 21)
    # The third block is the table of a list, and the counter counts two objects.
    parts = kept(1, publishes, elsewhere), kept(1, CREATES, init), kept(1, CREATES, stored)
    assert line_of(*parts, slope=2) == CREATES
    # As many blocks as the counter counts: each of the two lines makes half.
    assert line_of(*parts[1:], slope=2) == init
    # No caller makes the whole: one of the lines that make half of it is named.
    assert line_of(Retention((Site(*init, ""),), 1, 100), Retention((Site(*stored, ""),), 1, 100), slope=2) == init


@pytest.mark.parametrize(("third", "line"), [(194, CREATES), (185, ("/project/topic.py", 9))])
def test_lines_allocate_equally_much_if_each_has_19_twentieths_of_the_most(third: int, line: tuple[str, int]) -> None:
    init, stored, elsewhere = ("/project/view.py", 5), ("/project/view.py", 6), ("/project/topic.py", 9)
    publishes = ("/project/session.py", 21)
    parts = kept(200, publishes, elsewhere), kept(200, CREATES, init), kept(third, CREATES, stored)
    assert line_of(*parts, slope=400) == line


def test_callers_of_generated_code_that_do_not_make_the_whole_are_not_named() -> None:
    other = ("/project/session.py", 21)
    parts = kept(6, CREATES, GENERATED, DEFAULT), kept(4, other, GENERATED)
    # The line of the test accounts for all of it, but shows less.
    assert line_of(*parts, slope=10) == DEFAULT


class Page:
    """Has a buffer that another line allocates."""

    def __init__(self) -> None:
        self.text = bytearray(5000)


def test_lines_whose_objects_replace_others_are_left_out() -> None:
    def traced(keep: Callable[[int], object], *, steady: bool) -> float:
        gc.freeze()
        allocations = Allocations(0.001, of_heap=True)
        allocations.open()
        try:
            for number in range(8):
                keep(number)
                allocations.iteration_done(0.001)
            grown = allocations.retained_blocks(steady=steady)
        finally:
            allocations.close()
            gc.unfreeze()
        return sum(one.size for one in grown)

    pages = [Page() for _ in range(16)]
    texts: list[bytes] = []
    assert traced(lambda number: pages.__setitem__(number, Page()), steady=False) > 4000
    assert traced(lambda number: pages.__setitem__(number, Page()), steady=True) < 1000
    assert traced(lambda _number: texts.append(bytes(5000)), steady=True) > 4000


MIB = 1 << 20


def test_the_hidden_iterator_of_a_generator_expression_is_no_owner() -> None:
    parts = [bytes([number]) * MIB for number in range(8)]
    composition = Composition("rss", 8 * MIB)

    def inspect(part: bytes) -> int:
        composition.look(sys._getframe(1), 8 * MIB, 8 * MIB)
        return len(part)

    assert sum(inspect(part) for part in parts) == 8 * MIB
    owner = composition.culprit().owner
    assert owner is not None
    # The frame of the generator expression has a variable `.0`, which reaches all of the parts too.
    assert owner.name == f"{test_the_hidden_iterator_of_a_generator_expression_is_no_owner.__name__}() local 'parts'"
    assert owner.holds.startswith("8 × bytes")


@pytest.mark.parametrize(("total", "is_told"), [(60 * MIB, True), (150 * MIB, False)])
def test_the_largest_line_is_told_with_its_share_if_that_is_a_hundredth(total: int, *, is_told: bool) -> None:
    composition = Composition("rss", MIB)
    buffer = bytearray(MIB)
    composition.look(sys._getframe(), total, total)
    share = composition.culprit().share
    assert (share is not None and share.size == sys.getsizeof(buffer)) is is_told


@pytest.mark.parametrize(("levels", "is_found"), [(8, True), (12, False)])
def test_the_line_of_the_program_is_found_if_it_is_among_24_frames(levels: int, *, is_found: bool) -> None:
    """A level takes two frames of `copy`."""
    nested: object = bytearray(MIB)
    for _ in range(levels):
        nested = [nested]
    composition = Composition("rss", MIB)
    copied = copy.deepcopy(nested)
    composition.look(sys._getframe(), MIB, MIB)
    assert copied
    assert (composition.culprit().where is not None) is is_found


@pytest.fixture
def unexplained(monkeypatch: pytest.MonkeyPatch) -> Iterator[Composition]:
    """A peak of which no look finds a line or an owner."""
    monkeypatch.setattr(allocations_module, "_sum_by_stack", lambda _least: {})
    monkeypatch.setattr(allocations_module, "_find_owner", lambda _frame, _wanted: None)
    composition = Composition("rss", 100)
    yield composition
    composition.culprit()


@pytest.mark.parametrize(("risen", "is_wanted"), [(108, False), (112, True)])
def test_memory_is_looked_at_again_at_once_if_it_exceeds_the_last_look_by_a_tenth(
    unexplained: Composition, risen: int, *, is_wanted: bool
) -> None:
    unexplained.look(sys._getframe(), 100, 100)
    assert unexplained.wants(sys._getframe(), risen, rested=False) is is_wanted


def test_memory_that_rises_on_is_looked_at_ten_times(unexplained: Composition) -> None:
    looks = 0
    for risen in (100 << rise for rise in range(40)):
        if unexplained.wants(sys._getframe(), risen):
            unexplained.look(sys._getframe(), risen, risen)
            looks += 1
    assert looks == 10


def test_the_call_stacks_of_a_trace_take_320_bytes_each_beside_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """130,000 in an upload took 40 MiB."""
    table = 64 * 130_000
    monkeypatch.setattr(tracemalloc, "get_tracemalloc_memory", lambda: table)
    assert 0.9 * 40 * MIB < tracing_memory(sys.getallocatedblocks()) - table < 40 * MIB
    # So many blocks explain what is in the tables.
    assert tracing_memory(sys.getallocatedblocks() - 130_000) - table < MIB


@pytest.mark.parametrize(("slowdown", "frames"), [(2.1, 64), (2.3, 12), (3.2, 12), (3.5, 1)])
@pytest.mark.parametrize("plain", [0.001, 0.0001, 1.0])
def test_the_slower_an_iteration_is_with_one_frame_the_fewer_are_recorded(
    slowdown: float, frames: int, plain: float
) -> None:
    """One that takes less than a millisecond is compared with one that takes as long."""
    allocations = Allocations(plain)
    allocations.open()
    try:
        allocations.iteration_done(slowdown * max(plain, 0.001))
        assert tracemalloc.get_traceback_limit() == frames
    finally:
        allocations.close()


@pytest.mark.parametrize(("slowdown", "frames"), [(7.5, 64), (8.5, 12)])
def test_frames_that_make_an_iteration_eight_times_slower_are_too_many(slowdown: float, frames: int) -> None:
    allocations = Allocations(1.0)
    allocations.open()
    try:
        allocations.iteration_done(2.0)
        allocations.iteration_done(slowdown)
        assert tracemalloc.get_traceback_limit() == frames
    finally:
        allocations.close()


@pytest.mark.parametrize(("share", "waits"), [(0.0075, 0.002), (0.0125, 1.0)])
def test_the_trace_ends_when_other_threads_use_less_than_a_hundredth_or_after_a_second(
    share: float, waits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    fake = SimpleNamespace(
        monotonic=lambda: now, process_time=lambda: share * now, thread_time=lambda: 0.0, sleep=sleep
    )
    monkeypatch.setattr(allocations_module, "clock", fake)
    monkeypatch.setattr(allocations_module, "others_run", lambda: False)
    allocations_module._stop()
    assert now == pytest.approx(waits, abs=0.003)


class Part:
    """Replaced by more or fewer in each iteration."""

    __slots__ = ("name",)


class Entry:
    """Retained, one per iteration."""

    __slots__ = ("name",)


@pytest.mark.parametrize("every", [1, 2])
def test_of_objects_the_line_that_retains_some_each_time_is_named(every: int) -> None:
    entries: list[Entry] = []
    parts: list[Part] = []
    gc.freeze()
    allocations = Allocations(0.001, of_objects=True)
    allocations.open()
    try:
        for at, number in enumerate((5, 3, 4, 9, 6, 8, 12)):
            parts[:] = [Part() for _ in range(number)]
            entries += [Entry()] if at % every == 0 else []
            allocations.iteration_done(0.001)
        kept = allocations.retained_blocks()
    finally:
        allocations.close()
        gc.unfreeze()
    found = culprit_of(allocations.retained_objects(1 / every), 1 / every, by_size=False)
    assert found is not None
    assert (found.kind, found.blocks) == (id(Entry), {1: 1.0, 2: 0.6}[every])
    # Each call stack exists once, however often it is counted: it is traced as well.
    assert len({id(stack) for sums in allocations._objects or () for stack in sums}) == len(allocations._stacks)
    # By blocks, it would be the line of these.
    assert kept[0].path[-1].line == found.path[-1].line - 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="starts threads of the C library")
def test_the_trace_ends_while_threads_of_c_end() -> None:
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("sessions") / "program_with_native_threads.py"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
