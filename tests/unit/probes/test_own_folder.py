"""A folder for temporary files: removed by its process, and by another one only if that process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_leakcheck.probes import own_folder as module
from pytest_leakcheck.probes.own_folder import (
    make_folder,
    own_folder,
    remove_at_exit,
    remove_left_folders,
    temporary_folder,
)

OLD = time.time() - 9 * 24 * 3600


def left_by_a_killed_process(parent: Path) -> Path:
    program = (
        "import os, sys; from pytest_leakcheck.probes.own_folder import make_folder; "
        "print(make_folder(sys.argv[1]), flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(parent)], capture_output=True, text=True, check=False)
    return Path(killed.stdout.strip())


def test_that_of_a_killed_process_is_removed_and_that_of_a_living_one_stays_however_old(tmp_path: Path) -> None:
    mine, left = make_folder(tmp_path), left_by_a_killed_process(tmp_path)
    (left / "t").mkdir()
    (left / "t" / "file").touch()
    for folder in (mine, left):
        os.utime(folder, (OLD, OLD))
    program = "import sys; from pytest_leakcheck.probes import own_folder; own_folder.remove_left_folders(sys.argv[1])"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert (mine.is_dir(), left.exists()) == (True, False)


def test_its_process_lives_though_the_lock_is_lost(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    # A test has closed all descriptors.
    for number in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        try:
            if os.path.samestat(os.fstat(number), (mine / "lock").stat()):
                os.close(number)
        except OSError:
            pass
    remove_left_folders(tmp_path)
    assert mine.is_dir()


def test_the_number_of_a_dead_process_may_belong_to_another_one(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path)
    (left / "lock").write_text(f"{os.getpid()} 1")
    remove_left_folders(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    "kind", ["no lock", "lock is a link", "lock is a pipe", "empty lock", "other name", "link", "file"]
)
def test_what_is_not_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("99999999 5")
    path = tmp_path / ("leakcheck-notours" if kind == "other name" else "leakcheck-12345678")
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "file":
        path.write_text("99999999 5")
    else:
        path.mkdir()
        (path / "golden").touch()
    if kind == "lock is a link":
        (path / "lock").symlink_to(elsewhere / "lock")
    elif kind == "lock is a pipe":
        os.mkfifo(path / "lock")
    elif kind == "empty lock":
        (path / "lock").touch()
    elif kind == "other name":
        (path / "lock").write_text("99999999 5")
    remove_left_folders(tmp_path)
    assert path.exists()
    assert (elsewhere / "lock").exists()


def test_a_link_inside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "file").touch()
    left = left_by_a_killed_process(tmp_path)
    (left / "t").symlink_to(tmp_path / "golden")
    remove_left_folders(tmp_path)
    assert not left.exists()
    assert (tmp_path / "golden" / "file").exists()


def test_it_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with temporary_folder(tmp_path) as folder:
            assert [path.stat().st_mode & 0o777 for path in (folder, folder / "lock")] == [0o700, 0o600]
    finally:
        os.umask(before)
    assert not folder.exists()


def test_it_is_removed_at_exit_but_not_by_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", registered.append)
    folder = make_folder(tmp_path)
    remove_at_exit(folder)
    (remove,) = registered
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 1)
        remove()
    assert folder.exists()
    remove()
    assert not folder.exists()


def test_a_forked_child_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_OF_PROCESS", [])
    monkeypatch.setattr("atexit.register", lambda _: None)
    mine = own_folder()
    assert own_folder() == mine
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert own_folder() != mine
