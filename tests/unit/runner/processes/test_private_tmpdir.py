"""A temporary folder of a process's own: short, made where the shared one is, and removed, also after a kill."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.probes.folders import PRIVATE_FOLDER
from pytest_leakcheck.runner.processes.private_tmpdir import (
    has_room,
    make_folder,
    remove_at_exit,
    remove_stale,
    shared_folder,
    variables_for,
)

DAY = 24 * 3600.0


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # pytest's own folder must not be made in this one.
    tmp_path_factory.getbasetemp()
    # Short, so that there is room.
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        monkeypatch.setattr("tempfile.tempdir", None)
        for name in ("TMPDIR", "TEMP", "TMP"):
            monkeypatch.setenv(name, folder)
        yield Path(folder)


def test_the_environment_names_it_and_leaves_the_folders_of_pytest_outside(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_folder() == str(shared)
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT", raising=False)
    folder = make_folder(str(shared))
    assert folder
    own = str(folder / "t")
    assert variables_for(folder) == {"TMPDIR": own, "TEMP": own, "TMP": own, "PYTEST_DEBUG_TEMPROOT": str(shared)}
    assert PRIVATE_FOLDER.fullmatch(own)
    assert (folder / "t").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", "/given")
    assert variables_for(folder)["PYTEST_DEBUG_TEMPROOT"] == "/given"


def test_it_is_removed_at_exit_but_not_by_a_child(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", registered.append)
    folder = make_folder(str(shared))
    assert folder
    remove_at_exit(folder)
    (remove,) = registered
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 1)
        remove()
    assert folder.exists()
    remove()
    assert not folder.exists()


def test_a_folder_that_the_program_chose_is_kept(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = str(shared / "chosen")
    monkeypatch.setattr("tempfile.tempdir", chosen)
    assert shared_folder() == ""
    assert tempfile.gettempdir() == chosen
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    assert shared_folder() == str(shared)


def test_there_is_room_in_the_usual_folders() -> None:
    assert has_room("/tmp")
    assert has_room("/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T")


def test_no_folder_is_made_that_takes_a_sockets_path_its_room(shared: Path) -> None:
    lengths = [length for length in range(200) if not has_room("x" * length)]
    assert len(lengths) == len("/leakcheck-12345678/t")
    assert lengths[0] > 50
    deep = shared / ("x" * (lengths[0] - len(str(shared)) - 1))
    deep.mkdir()
    assert make_folder(str(deep)) is None


def test_what_killed_sessions_left_is_removed_after_three_days(shared: Path) -> None:
    folders = {name: make_folder(str(shared)) for name in ("old", "in use", "new")}
    now = time.time()
    for name, folder in folders.items():
        assert folder
        variables_for(folder)
        (folder / "t" / "file").touch()
        for path in (folder / "t", folder):
            os.utime(path, (now - 4 * DAY,) * 2)
        if name == "new":
            os.utime(folder, (now - 2 * DAY,) * 2)
        if name == "in use":
            (folder / "t" / "other").touch()
    for name in ("leakcheck-notours", "leakcheck-12345678-shm", "other"):
        (shared / name).mkdir()
        os.utime(shared / name, (now - 4 * DAY,) * 2)
    remove_stale(now)
    left = {path.name for path in shared.iterdir()}
    assert {name for name, folder in folders.items() if folder and folder.name in left} == {"in use", "new"}
    assert left >= {"leakcheck-notours", "leakcheck-12345678-shm", "other"}


def test_a_link_is_not_followed(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "t").mkdir()
    (shared / "leakcheck-abcdefgh").symlink_to(elsewhere)
    remove_stale(time.time() + 30 * DAY)
    assert (elsewhere / "t").exists()
