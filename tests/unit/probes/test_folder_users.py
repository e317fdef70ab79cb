"""An entry of a shared folder that another process has in use is not the test's; what this process left is."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_leakcheck.probes.folder_users import used_by_others, used_here
from pytest_leakcheck.probes.folders import Folder

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# Started by a shell that ends at once, so that it is not below this process.
STRANGER = """
import os, sys, time
folder, how = sys.argv[1:]
if how == "open":
    file = open(os.path.join(folder, "theirs"), "w")
elif how == "below":
    os.mkdir(os.path.join(folder, "theirs"))
    file = open(os.path.join(folder, "theirs", "inner"), "w")
else:
    os.mkdir(os.path.join(folder, "theirs"))
    os.chdir(os.path.join(folder, "theirs"))
print(os.getpid(), flush=True)
os.close(1)
time.sleep(60)
"""


@contextmanager
def stranger(folder: Path, how: str) -> Iterator[None]:
    command = ["sh", "-c", '"$@" &', "sh", sys.executable, "-c", STRANGER, str(folder), how]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 600
        while Path(f"/proc/{pid}/fd").exists() and time.monotonic() < deadline:
            time.sleep(0.001)


@pytest.mark.parametrize("how", ["open", "below", "works there"])
def test_what_a_stranger_uses_is_told_from_what_is_ours(tmp_path: Path, how: str) -> None:
    with (tmp_path / "ours").open("w"), stranger(tmp_path, how):
        assert used_by_others(str(tmp_path), ["ours", "theirs", "there"]) == {"theirs"}
        assert used_by_others(str(tmp_path), ["ours"]) == set()
    assert used_by_others(str(tmp_path), ["ours", "theirs"]) == set()


def test_a_child_is_not_a_stranger(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(tmp_path), "open"], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert used_by_others(str(tmp_path), ["theirs"]) == set()
        child.kill()


def test_it_is_taken_off_all_rows_and_does_not_come_again(tmp_path: Path) -> None:
    folder = Folder("disk", str(tmp_path))
    folder.open()
    with stranger(tmp_path, "open"):
        (tmp_path / "ours").touch()
        folder.relist(3)
        column = array("q", [0, 0, 0, folder.count])
        assert column[3] == 2
        assert folder.set_aside_used()
        folder.recount(column, 3)
        assert list(column) == [0, 0, 0, 1]
        (tmp_path / "ours, too").touch()
        folder.relist(4)
        assert folder.count == 2
        assert not folder.set_aside_used()


def test_what_is_open_or_mapped_here_or_below_is_ours(tmp_path: Path) -> None:
    for name in ("open", "mapped", "closed"):
        (tmp_path / name).write_bytes(b"1")
    with (tmp_path / "open").open(), (tmp_path / "mapped").open() as file:
        kept = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        file.close()
        assert used_here(str(tmp_path), ["open", "mapped", "closed"]) == {"open", "mapped"}
        kept.close()
    with subprocess.Popen([sys.executable, "-c", STRANGER, str(tmp_path), "open"], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        assert used_here(str(tmp_path), ["theirs", "closed"]) == {"theirs"}
        child.kill()


def test_what_is_set_aside_and_turns_out_to_be_ours_counts_again(tmp_path: Path) -> None:
    folder = Folder("shm", str(tmp_path))
    folder.open()
    with (tmp_path / "part-1").open("w"):
        folder.relist(1)
        for number in range(2, 6):
            (tmp_path / f"part-{number}").touch()
        assert folder.rested(2, seconds=1.0, worked=1.0)
        assert (folder.count, folder.set_aside.working) == (0, 1)
        column = array("q", [0, 1, 0])
        assert folder.set_aside_used()
        folder.recount(column, 1)
        assert (folder.count, folder.own, folder.set_aside.working) == (1, 1, 0)
        assert list(column) == [0, 1, 0]
