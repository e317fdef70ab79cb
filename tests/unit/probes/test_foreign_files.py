from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_leakcheck.probes.foreign_files import Unreadable, private, read_tail, read_text
from pytest_leakcheck.runner.processes.supervisor import Board, BoardView


def replaced(path: Path, how: str) -> Path:
    secret = path.with_name("secret")
    secret.write_text("do not read")
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "second name":
        os.link(secret, path)
    elif how == "endless":
        path.symlink_to("/dev/zero")
    elif how == "large":
        path.touch()
        os.truncate(path, 1 << 40)
    else:
        path.symlink_to(secret)
    return path


@pytest.mark.parametrize("how", ["pipe", "folder", "second name", "endless", "large", "link"])
def test_what_stands_in_place_of_a_file_is_refused(tmp_path: Path, how: str) -> None:
    with pytest.raises(Unreadable):
        read_text(replaced(tmp_path / "messages-0", how))


def test_a_file_that_is_not_there_has_no_text(tmp_path: Path) -> None:
    assert read_text(tmp_path / "none") == ""
    (tmp_path / "some").write_bytes(b"a\xff")
    assert read_text(tmp_path / "some") == "a\N{REPLACEMENT CHARACTER}"


def test_the_end_of_a_file_is_read_without_moving_its_position(tmp_path: Path) -> None:
    (tmp_path / "said").write_bytes(b"x" * (1 << 20) + b"last")
    with (tmp_path / "said").open("rb") as file:
        assert len(found := read_tail(file.fileno())) == 1 << 16
        assert found.endswith("xlast")
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0


def test_a_private_file_is_for_this_user_alone_and_no_link(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        open(tmp_path / "own", "w", opener=private).close()
    finally:
        os.umask(before)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="symbolic links"):
        private(replaced(tmp_path / "planted", "link"), os.O_WRONLY | os.O_APPEND)
    assert (tmp_path / "secret").read_text() == "do not read"


def test_a_board_that_is_cut_does_not_crash_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "board"
    path.write_bytes(bytes(Board.SIZE))
    board, view = Board(path), BoardView(path)
    board.iteration = 7
    board.set_unsent(1 << 40)
    assert (view.iteration, view.unsent) == (7, 4095)
    os.truncate(path, 0)
    assert (view.iteration, view.steps, view.finished) == (7, 7, False)
    view.close()
