"""The line whose allocations are retained: of an object that generated code fills, the line that creates it."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.call_paths import read_path
from pytest_leakcheck.attribution.tracing.allocations import Allocations, Composition, Retention, culprit_of
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
