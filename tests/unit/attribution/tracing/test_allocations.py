"""The line whose allocations are retained: of an object that generated code fills, the line that creates it."""

from __future__ import annotations

from pytest_leakcheck.attribution.call_paths import read_path
from pytest_leakcheck.attribution.tracing.allocations import Kept, culprit_of
from pytest_leakcheck.model.culprit import Site

TEST = ("/project/test_it.py", 10)
CREATES = ("/project/session.py", 20)
DEFAULT = ("/project/session.py", 5)
GENERATED = ("<string>", 3)


def kept(blocks: float, *lines: tuple[str, int]) -> Kept:
    return Kept(tuple(Site(file, line, "") for file, line in (TEST, *lines)), blocks, blocks * 100)


def line_of(*some: Kept, slope: float) -> tuple[str, int] | None:
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


def test_callers_of_generated_code_that_do_not_make_the_whole_are_not_named() -> None:
    other = ("/project/session.py", 21)
    parts = kept(6, CREATES, GENERATED, DEFAULT), kept(4, other, GENERATED)
    # The line of the test accounts for all of it, but shows less.
    assert line_of(*parts, slope=10) == DEFAULT
