from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.report.glyphs import shorten, shown_in, sparkline

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
LINE = "└ fd 2 → 9 — ≈ 7 × … ▁▄█"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", LINE),
        (None, LINE),
        ("ascii", "` fd 2 > 9 - ~ 7 x ~ _-#"),
        ("latin-1", "` fd 2 > 9 - ~ 7 x ~ _-#"),
    ],
)
def test_a_stream_gets_what_it_can_show_in_the_same_columns(encoding: str | None, shown: str) -> None:
    assert shown_in(LINE, encoding) == shown
    assert len(shown) == len(LINE)


def test_other_characters_are_escaped() -> None:
    assert shown_in("é → \udcff", "ascii") == "\\xe9 > \\udcff"
    assert shown_in("é × 2", "latin-1") == "é × 2"
    assert shown_in("\udcff", "utf-8") == "\\udcff"


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
    assert sparkline(readings) == line


@PROPERTY
@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=60), st.integers(2, 30))
def test_a_course_is_never_wider_than_asked(readings: list[int], width: int) -> None:
    line = sparkline(readings, width)
    assert len(line) == min(width, len(readings))


def test_a_long_text_keeps_both_ends() -> None:
    assert shorten("tests/test_loader.py::test_switch", 16) == "tests…est_switch"
    assert shorten("short", 16) == "short"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        (
            "tests/web/integration/test_loader_of_rows.py::test_switch",
            48,
            "tests/web/…/test_loader_of_rows.py::test_switch",
        ),
        ("tests/web/integration/test_loader_of_rows.py::test_switch", 40, "…/test_loader_of_rows.py::test_switch"),
        ("/tmp/pytest-of-me/pytest-12/test_it0/rows.bin", 28, "/tmp/…/test_it0/rows.bin"),
        # No name of the end is short enough.
        ("Thread(target=sleep,args=(100,)).start()", 30, "Thread(ta…args=(100,)).start()"),
    ],
)
def test_a_long_text_keeps_whole_names(text: str, width: int, shown: str) -> None:
    assert shorten(text, width) == shown


@PROPERTY
@given(st.text("ab/ \n", max_size=40), st.integers(1, 40))
def test_a_shortened_text_has_at_most_the_width(text: str, width: int) -> None:
    shown = shorten(text, width)
    assert len(shown) <= width
    assert (shown == text) == (len(text) <= width)
