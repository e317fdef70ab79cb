from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.report.glyphs import ASCII, UNICODE, Glyphs, glyphs_for, shorten, sparkline

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [
        ("utf-8", UNICODE),
        ("UTF8", UNICODE),
        ("ascii", ASCII),
        ("latin-1", ASCII),
        ("cp437", ASCII),
        ("no-such-encoding", ASCII),
        (None, ASCII),
        ("", ASCII),
    ],
)
def test_a_stream_gets_what_it_can_show(encoding: str | None, glyphs: Glyphs) -> None:
    assert glyphs_for(encoding) is glyphs


def test_both_sets_have_the_same_widths_so_that_columns_stay() -> None:
    assert list(map(len, astuple(UNICODE))) == list(map(len, astuple(ASCII)))
    assert "".join(astuple(ASCII)).isascii()


@pytest.mark.parametrize(
    ("readings", "line"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7), "▁▂▃▄▅▆▇█"),
        ((5, 5, 5), "▁▁▁"),
        ((0, 100, 0), "▁█▁"),
        (tuple(range(33)), "▁▁▂▂▃▃▄▄▅▅▆▆▇▇██"),
    ],
)
def test_a_course_is_drawn_from_its_lowest_to_its_highest(readings: tuple[int, ...], line: str) -> None:
    assert sparkline(readings, UNICODE) == line
    assert sparkline(readings, ASCII) == line.translate(str.maketrans(UNICODE.levels, ASCII.levels))


@PROPERTY
@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=60), st.integers(2, 30))
def test_a_course_is_never_wider_than_asked(readings: list[int], width: int) -> None:
    line = sparkline(readings, ASCII, width)
    assert len(line) == min(width, len(readings))


def test_a_long_text_keeps_both_ends() -> None:
    assert shorten("tests/test_loader.py::test_switch", 16, ASCII) == "tests~est_switch"
    assert shorten("short", 16, ASCII) == "short"


@PROPERTY
@given(st.text(max_size=40), st.integers(4, 40))
def test_a_shortened_text_has_at_most_the_width(text: str, width: int) -> None:
    shown = shorten(text, width, ASCII)
    assert len(shown) == min(width, len(text))
    assert (shown == text) == (len(text) <= width)
