"""The line is drawn below the cursor and erased, and nothing is written to a descriptor that is another file by now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_leakcheck.report.transient_line import TransientLine


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
