"""A folder for temporary files: removed by its process, and by another one only if that process is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.probes import own_folder as module
from pytest_leakcheck.probes.own_folder import (
    make_folder,
    own_folder,
    remove_folder,
    remove_left_folders,
    remove_tree,
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
    (left / "lock").write_text(f"pytest-leakcheck {os.getpid()} 1")
    remove_left_folders(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    "kind",
    ["no lock", "lock is a link", "lock is a pipe", "empty lock", "lock of another", "other name", "link", "file"],
)
def test_what_is_not_ours_is_left_alone(tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").write_text("pytest-leakcheck 99999999 5")
    path = tmp_path / ("leakcheck-notours" if kind == "other name" else "leakcheck-12345678")
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "file":
        path.write_text("pytest-leakcheck 99999999 5")
    else:
        path.mkdir()
        (path / "golden").touch()
    if kind == "lock is a link":
        (path / "lock").symlink_to(elsewhere / "lock")
    elif kind == "lock is a pipe":
        os.mkfifo(path / "lock")
    elif kind == "empty lock":
        (path / "lock").touch()
    elif kind == "lock of another":
        (path / "lock").write_text("99999999 5")
    elif kind == "other name":
        (path / "lock").write_text("pytest-leakcheck 99999999 5")
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
    registered: list[tuple[Any, ...]] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_OF_PROCESS", [])
    monkeypatch.setattr("atexit.register", lambda *call: registered.append(call))
    folder = own_folder()
    ((remove, *arguments),) = registered
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: 1)
        remove(*arguments)
    assert folder.exists()
    remove(*arguments)
    assert not folder.exists()


def test_a_forked_child_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_OF_PROCESS", [])
    monkeypatch.setattr("atexit.register", lambda *_: None)
    mine = own_folder()
    assert own_folder() == mine
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert own_folder() != mine


def test_no_descriptor_stays_behind(tmp_path: Path) -> None:
    before = {*Path("/proc/self/fd").iterdir()}
    with temporary_folder(tmp_path):
        assert len({*Path("/proc/self/fd").iterdir()} - before) == 1
    assert {*Path("/proc/self/fd").iterdir()} == before


def test_without_a_lock_no_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no descriptor is left: no session would remove the folder."""

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    before = {*Path("/proc/self/fd").iterdir()}
    for step in ("private", "try_to_lock"):
        monkeypatch.setattr(module, step, refuse)
        with pytest.raises(OSError, match="Too many"):
            make_folder(tmp_path)
        assert list(tmp_path.iterdir()) == []
        monkeypatch.undo()
    assert {*Path("/proc/self/fd").iterdir()} == before


@pytest.mark.parametrize("other", ["folder", "link"])
def test_what_lies_in_its_place_stays(tmp_path: Path, other: str) -> None:
    golden = tmp_path / "golden"
    golden.mkdir()
    (golden / "file").touch()
    with temporary_folder(tmp_path) as folder:
        folder.rename(tmp_path / "moved")
        if other == "link":
            folder.symlink_to(golden)
        else:
            golden.rename(folder)
    assert (folder / "file").exists()


def test_a_link_with_the_number_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    """A file system may give the number of a removed folder to a link that is made in its place."""
    (tmp_path / "golden" / "inner").mkdir(parents=True)
    (tmp_path / "golden" / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "golden")
    assert not remove_tree(link, link.lstat())
    assert sorted(path.name for path in link.iterdir()) == ["file", "inner"]


def test_another_folder_is_not_removed_by_name(tmp_path: Path) -> None:
    remove_folder(tmp_path)
    assert tmp_path.exists()


def test_what_is_mounted_in_it_stays(tmp_path: Path) -> None:
    golden = tmp_path / "golden"
    golden.mkdir()
    (golden / "file").touch()
    program = """
import os, subprocess, sys
from pathlib import Path
from pytest_leakcheck.probes.own_folder import remove_tree
for name in "with blank\\\t", "plain":
    folder = Path(sys.argv[1], name)
    (folder / "below").mkdir(parents=True)
    subprocess.run(["mount", "--bind", sys.argv[2], str(folder / "below")], check=True)
    assert not remove_tree(folder, os.lstat(folder))
    subprocess.run(["umount", str(folder / "below")], check=True)
    assert remove_tree(folder, os.lstat(folder))
"""
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", program, str(tmp_path), str(golden)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no program to mount with")
    if "unshare: " in ended.stderr or "mount: " in ended.stderr:
        pytest.skip(f"nothing can be mounted here: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr
    assert (golden / "file").exists()


def test_of_two_sessions_that_start_at_once_one_removes(tmp_path: Path) -> None:
    left = left_by_a_killed_process(tmp_path)
    descriptor = os.open(left / "lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    remove_left_folders(tmp_path)
    assert left.exists()
    os.close(descriptor)
    remove_left_folders(tmp_path)
    assert not left.exists()


def test_a_process_of_another_namespace_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Its number means nothing here, but its lock does."""
    program = (
        "import sys; from pytest_leakcheck.probes.own_folder import make_folder; "
        "print(make_folder(sys.argv[1]), flush=True); sys.stdin.read()"
    )
    command = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", program]
    try:
        other = subprocess.Popen([*command, str(tmp_path)], stdin=-1, stdout=-1, stderr=-1, text=True)
    except FileNotFoundError:
        pytest.skip("no program to make a namespace with")
    with other:
        assert other.stdin
        assert other.stdout
        assert other.stderr
        folder = other.stdout.readline().strip()
        if not folder:
            pytest.skip(f"no namespace can be made here: {other.stderr.read()}")
        assert Path(folder, "lock").read_text().startswith("pytest-leakcheck 1 ")
        remove_left_folders(tmp_path)
        assert Path(folder).is_dir()
        other.stdin.close()
    remove_left_folders(tmp_path)
    assert not Path(folder).exists()


def test_an_audit_hook_may_refuse_to_remove_it(tmp_path: Path) -> None:
    """No session ends with that error; a later one removes the folder."""
    program = """
import sys
from pytest_leakcheck.probes.own_folder import remove_left_folders, temporary_folder

def refuse(event, arguments):
    if event == "shutil.rmtree":
        raise RuntimeError("refused")

sys.addaudithook(refuse)
with temporary_folder(sys.argv[1]):
    pass
remove_left_folders(sys.argv[1])
"""
    left_by_a_killed_process(tmp_path)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
    assert len(list(tmp_path.iterdir())) == 2
    remove_left_folders(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_that_nobody_waits_for_is_gone(tmp_path: Path) -> None:
    """As in a container whose first process does not wait for others."""
    program = "import sys; from pytest_leakcheck.probes.own_folder import make_folder; make_folder(sys.argv[1]); "
    program += "print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=-1, stdout=-1) as other:
        assert other.stdout
        other.stdout.readline()
        remove_left_folders(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1
        other.kill()
        # It closes its output as it ends; then it is a zombie.
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        remove_left_folders(tmp_path)
        assert list(tmp_path.iterdir()) == []


def test_what_an_interrupted_removal_leaves_is_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_by_a_killed_process(tmp_path)
    for name in ("t", "u"):
        (left / name).mkdir()
    (left / "file").touch()
    removed: list[str] = []
    last: list[str] = []
    remove: Any = shutil.rmtree

    def watched(path: Any, **options: Any) -> None:
        if Path(path) == left:
            last.extend(one.name for one in left.iterdir())
        remove(path, **options)

    def interrupted(path: Any, **options: Any) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        remove(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr("pytest_leakcheck.probes.own_folder.rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            remove_left_folders(tmp_path)
    assert (left / "lock").exists()
    monkeypatch.setattr("pytest_leakcheck.probes.own_folder.rmtree", watched)
    remove_left_folders(tmp_path)
    assert not left.exists()
    assert last == ["lock"]
