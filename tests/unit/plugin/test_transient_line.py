"""The line is drawn below the cursor and erased, and nothing is written to a descriptor that is another file by now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_leakcheck.plugin.progress_line import SessionProgress, TransientLine, format_growth, progress_line


def test_it_is_drawn_and_erased_once() -> None:
    there, here = os.pipe()
    line = TransientLine(here, "ascii")
    line.erase()
    line.draw("half ½")
    line.erase()
    line.erase()
    os.close(here)
    with os.fdopen(there, "rb") as written:
        assert written.read() == b"\x1bD\x1b[A\x1b7\x1b[?7l\r\n\x1b[2Khalf \\xbd\x1b[?7h\x1b8\x1b[J"


def test_a_descriptor_that_the_program_has_taken_is_left_alone(tmp_path: Path) -> None:
    there, here = os.pipe()
    line = TransientLine(here, "utf-8")
    assert line.width == 80
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY)
    os.dup2(other, here)
    line.draw("text")
    line.erase()
    os.close(other)
    os.close(here)
    assert (tmp_path / "other").read_bytes() == b""
    assert os.read(there, 1) == b""
    line.draw("text")
    os.close(there)
    with pytest.raises(OSError, match="Bad file"):
        TransientLine(here, "utf-8")


def test_a_terminal_that_is_gone_ends_it() -> None:
    there, here = os.pipe()
    line = TransientLine(here, "utf-8")
    os.close(there)
    line.draw("text")
    line.erase()
    os.close(here)


SESSION = SessionProgress(312, 1940, 2, 840.0)


def test_all_of_it() -> None:
    growth = format_growth({"fd": 7.0, "thread": 0.0, "heap": -3.0})
    line = progress_line(SESSION, 80, "test_x", "61/230", growth)
    assert line == "leakcheck 61/230  test_x  fd +7.0/iter  [312/1940, 2 red, ≈ 14 min left]"
    unknown = SessionProgress(0, 1, 0, None)
    assert progress_line(unknown, 80, "test_x") == "leakcheck  test_x  [0/1]"


@pytest.mark.parametrize("width", [20, 40, 60, 80])
def test_it_is_never_too_wide(width: int) -> None:
    line = progress_line(SESSION, width, "test_" + "of_a_long_name" * 9, "61/230", "fd +7.0/iter")
    assert len(line) <= width
    assert line.startswith("leakcheck 61/230  ")
    assert ("fd +7.0/iter" in line) == (width >= 80)


def test_a_name_is_text() -> None:
    assert "\\x1b" in progress_line(SESSION, 80, "test_x[\x1b]")


def test_growth_is_what_exceeds_the_tolerance_exact_counters_first() -> None:
    assert format_growth({"heap": 1.0, "fd": 0.0}) == ""
    assert format_growth({"heap": 5000.0, "fd": 1.0}) == "fd +1.0/iter · heap +4.9 KiB/iter"
    assert format_growth({"heap": 5000.0, "fd": 1.0, "thread": 2.0}) == "thread +2.0/iter · fd +1.0/iter · 1 more"
