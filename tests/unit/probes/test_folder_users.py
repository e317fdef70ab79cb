"""An entry of a shared folder that another process has in use is not the test's; what this process left is."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_leakcheck.probes.folders import used_by_others, used_here

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


def test_a_semaphore_is_found_by_its_inode() -> None:
    """It is mapped before it is given its name."""
    kept = multiprocessing.get_context("spawn").Semaphore(1)
    name = "sem." + kept._semlock.name.lstrip("/")  # type: ignore[attr-defined]
    assert used_here("/dev/shm", [name]) == {name}
    assert used_by_others("/dev/shm", [name]) == set()
