"""A file is replaced as a whole or stays as it is, whatever fails and whenever the process dies."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.model import regular_file
from pytest_leakcheck.model.regular_file import FileError, Ours, append, locked, open_regular, replace_file

OURS = Ours("a list", re.compile(rb"list"))
OLD, NEW = b"list old " * 1000, b"list new " * 1000
CALLS = ("open", "stat", "fstat", "fchmod", "fsync", "replace", "scandir", "unlink", "close")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    return path


def in_child(do: Callable[[], object]) -> int:
    """Run this in a forked process; return 0 if it ends, 1 if it raises, and else how it was ended."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            do()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def failing(name: str, at: int, fail: Callable[[], object]) -> Callable[..., Any]:
    original, calls = getattr(os, name), iter(range(1000))

    def call(*arguments: Any, **named: Any) -> Any:
        if next(calls) == at:
            fail()
        return original(*arguments, **named)

    return call


def test_a_new_file_is_as_any_other_and_an_old_one_keeps_its_permissions(path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(path.with_name("new"), NEW, OURS)
        path.chmod(0o604)
        replace_file(path, NEW, OURS)
    finally:
        os.umask(before)
    assert path.with_name("new").stat().st_mode & 0o777 == 0o640
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (NEW, 0o604)
    assert sorted(one.name for one in path.parent.iterdir()) == ["file", "new"]


def test_a_link_stays_and_what_it_leads_to_is_replaced(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    replace_file(link, NEW, OURS)
    assert (link.is_symlink(), path.read_bytes()) == (True, NEW)
    with pytest.raises(FileError, match="a link, not a regular file"):
        open_regular(link, "ab", follow=False)


def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    path.write_bytes(b"notes")
    with pytest.raises(FileError, match="file: it exists, and is not a list; name another file, or remove this one"):
        replace_file(path, NEW, OURS)
    assert path.read_bytes() == b"notes"
    path.write_bytes(b"")
    replace_file(path, NEW, OURS)
    assert path.read_bytes() == NEW


@pytest.mark.parametrize("kind", ["named pipe", "socket", "device", "folder"])
def test_only_regular_files_are_opened_and_nothing_is_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as unix:
        if kind == "socket":
            unix.bind(str(path))
        uses: tuple[Callable[[], object], ...] = (
            lambda: open_regular(path),
            lambda: append(path, b"x"),
            lambda: replace_file(path, NEW, OURS),
        )
        for use in uses:
            with pytest.raises(FileError, match=f": a {kind}, not a regular file; name a regular file"):
                use()


def test_a_larger_file_is_refused(path: Path) -> None:
    with pytest.raises(FileError, match=r"9,000 bytes, of at most 8,999; name a smaller file"):
        open_regular(path, most=8999)


@pytest.mark.parametrize("name", CALLS)
def test_whatever_call_fails_the_file_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    for at in range(20):
        path.write_bytes(OLD)
        failed = False
        with monkeypatch.context() as patched:
            patched.setattr(os, name, failing(name, at, fail))
            try:
                replace_file(path, NEW, OURS)
            except OSError as error:
                failed = True
                told = str(error)
        assert path.read_bytes() in (OLD, NEW)
        if failed and name not in ("unlink", "close"):
            assert path.read_bytes() == OLD
            assert told == f"{path}: No space left on device; free some space, or name a file elsewhere"
        # What could not be removed is removed by the next one.
        replace_file(path, OLD, OURS)
        assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", CALLS)
def test_wherever_the_process_dies_the_file_is_whole(path: Path, name: str) -> None:
    def write(at: int) -> None:
        setattr(os, name, failing(name, at, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        replace_file(path, NEW, OURS)

    for at in range(12):
        path.write_bytes(OLD)
        died = in_child(lambda at=at: write(at)) != 0  # type: ignore[misc]
        assert path.read_bytes() in ((OLD, NEW) if died else (NEW,))
        replace_file(path, OLD, OURS)
        assert list(path.parent.iterdir()) == [path]


def test_a_disk_that_takes_a_part_leaves_the_old_file(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(FileError, match="File too large; free some space, or name a file elsewhere"):
            replace_file(path, NEW, OURS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (path.read_bytes(), list(path.parent.iterdir())) == (OLD, [path])


def test_each_of_the_first_sixty_files_may_fail_to_open(path: Path) -> None:
    def write(limit: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        replace_file(path, NEW, OURS)

    ends = set()
    for limit in range(60):
        path.write_bytes(OLD)
        status = in_child(lambda limit=limit: write(limit))  # type: ignore[misc]
        assert path.read_bytes() == (NEW if status == 0 else OLD)
        assert list(path.parent.iterdir()) == [path]
        ends.add(status)
    assert ends == {0, 1}


def test_one_writer_waits_for_the_other_and_not_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_file, "_PAUSE", 0)
    with locked(path), pytest.raises(FileError, match="another process has locked its folder"):
        replace_file(path, NEW, OURS)
    replace_file(path, NEW, OURS)


def test_a_file_that_only_looks_like_one_of_ours_is_not_removed(path: Path) -> None:
    for name in (".other.leakcheck-0123456789abcdef.tmp", ".file.leakcheck-mine.tmp"):
        path.with_name(name).write_bytes(b"mine")
    path.with_name(".file.leakcheck-0123456789abcdef.tmp").write_bytes(b"left by a killed process")
    replace_file(path, NEW, OURS)
    names = sorted(one.name for one in path.parent.iterdir())
    assert names == [".file.leakcheck-mine.tmp", ".other.leakcheck-0123456789abcdef.tmp", "file"]


WRITER = """
import re, sys
from pathlib import Path
from pytest_leakcheck.model.regular_file import Ours, replace_file
print("ready", flush=True)
while True:
    for letter in (b"a", b"b"):
        replace_file(Path(sys.argv[1]), b"list" + letter * 200_000, Ours("a list", re.compile(rb"list")))
"""


@pytest.mark.laboratory
def test_two_hundred_kills_at_random_moments(path: Path) -> None:
    chance = random.Random(58)
    path.write_bytes(b"list")
    for _kill in range(200):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(chance.uniform(0, 0.02))
            writer.kill()
        content = path.read_bytes()
        assert content in (b"list", b"list" + b"a" * 200_000, b"list" + b"b" * 200_000)
    replace_file(path, b"list", OURS)
    assert list(path.parent.iterdir()) == [path]
