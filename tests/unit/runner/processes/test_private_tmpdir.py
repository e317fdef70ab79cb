"""A temporary folder of a process's own: short, made where the shared one is, and used only in a context."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.probes.folders import PRIVATE_FOLDER
from pytest_leakcheck.probes.own_folder import make_folder
from pytest_leakcheck.runner.processes.private_tmpdir import has_room, private_tmpdir, shared_folder, variables_for


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


def test_the_environment_names_it_in_the_variables_that_are_in_use(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared_folder() == str(shared)
    folder = make_folder(str(shared))
    own = str(folder / "t")
    assert variables_for(folder) == {"TMPDIR": own, "TEMP": own, "TMP": own}
    assert PRIVATE_FOLDER.fullmatch(own)
    assert (folder / "t").stat().st_mode & 0o777 == 0o700
    for name in ("TMPDIR", "TEMP"):
        monkeypatch.delenv(name)
    assert variables_for(folder) == {"TMPDIR": own, "TMP": own}


def test_it_is_in_force_only_in_its_context(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEMP")
    tempfile.gettempdir()
    before, default = dict(os.environ), tempfile.tempdir
    with private_tmpdir(make_folder(shared)):
        assert PRIVATE_FOLDER.fullmatch(tempfile.gettempdir())
        assert os.environ["TMP"] == os.environ["TMPDIR"] == tempfile.gettempdir()
        assert "TEMP" not in os.environ
    assert (dict(os.environ), tempfile.tempdir) == (before, default)
    # What the program sets meanwhile stays.
    with private_tmpdir(make_folder(shared)):
        monkeypatch.setenv("TMP", "/theirs")
        tempfile.tempdir = "/theirs"
    assert (os.environ["TMP"], tempfile.tempdir) == ("/theirs", "/theirs")


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
    assert not has_room(str(deep))
