"""Make folders for this package's temporary files, and remove those that killed processes left.

Each has a lock file, which its process holds open and locked, with the process's number and start
time. A folder is removed by the process that has made it; by another one only if the lock is free
and that process is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

# The function itself: a test may replace that of the module.
from shutil import rmtree
from typing import Final, NamedTuple

from pytest_leakcheck.model.regular_file import try_to_lock
from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_descriptors import OwnFile, keep_high

PREFIX: Final = "leakcheck-"
_PATTERN: Final = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
_LOCK: Final = "lock"
# What a lock file begins with, so that no other file is taken for one.
_MARK: Final = b"pytest-leakcheck "
# The characters that the kernel writes as octal numbers in a list of mounts.
_ESCAPED: Final = {ord(one): f"\\{ord(one):03o}" for one in " \t\n\\"}
# The folder that this process uses, and the process: a forked child makes its own.
_OF_PROCESS: Final[list[tuple[Path, int]]] = []


class _Made(NamedTuple):
    status: os.stat_result
    lock: OwnFile
    process: int


# What has been made and not yet removed, in this process or in one that has forked it.
_MADE: Final[dict[Path, _Made]] = {}


def own_folder() -> Path:
    """Return this process's folder below the temporary one; it is removed when the process ends."""
    if not _OF_PROCESS or _OF_PROCESS[0][1] != os.getpid():
        folder = make_folder(tempfile.gettempdir())
        _OF_PROCESS[:] = [(folder, os.getpid())]
        # After what was imported later has cleaned up.
        atexit.register(remove_folder, folder)
    return _OF_PROCESS[0][0]


def use_folder(folder: Path) -> None:
    """Use a folder that another process has made for this one, and removes."""
    _OF_PROCESS[:] = [(folder, os.getpid())]


def make_folder(parent: str | Path) -> Path:
    """Create a folder for this user alone, and lock it until it is removed or this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = None
    try:
        lock = OwnFile(
            lambda: keep_high(private(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        )
        try_to_lock(lock.number)
        os.write(lock.number, b"%s%d %s" % (_MARK, os.getpid(), _start_of(os.getpid())))
    except OSError:
        if lock is not None:
            lock.close()
        # Without a lock, no later session would remove it.
        rmtree(folder, ignore_errors=True)
        raise
    _MADE[folder] = _Made(os.lstat(folder), lock, os.getpid())
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that this process has made; do nothing in a forked child or for another."""
    made = _MADE.get(folder)
    if made is not None and made.process == os.getpid():
        del _MADE[folder]
        # Windows removes no open file.
        made.lock.close()
        remove_tree(folder, made.status)


@contextlib.contextmanager
def temporary_folder(parent: str | Path | None = None) -> Iterator[Path]:
    """Create a folder, and remove it at the end."""
    folder = make_folder(parent or tempfile.gettempdir())
    try:
        yield folder
    finally:
        remove_folder(folder)


def remove_tree(folder: Path, made: os.stat_result) -> bool:
    """Remove the folder that had this status when it was made; return whether it is gone.

    Another folder in its place, a link, and one in which something is mounted are left alone.
    """
    try:
        now = os.lstat(folder)
        # A link in its place may have got the number of the folder.
        if not stat.S_ISDIR(now.st_mode) or not os.path.samestat(now, made) or _holds_mount(folder):
            return False
        with os.scandir(folder) as entries:
            inner = [one for one in entries if one.name != _LOCK]
        # A lock goes last: after an interruption, the rest is still known to be ours. This follows
        # no links.
        for entry in inner:
            if entry.is_dir(follow_symlinks=False):
                rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
        rmtree(folder, ignore_errors=True)
    except Exception:  # noqa: BLE001 - an audit hook may refuse it with any error
        return False
    return not os.path.lexists(folder)


def _holds_mount(folder: Path) -> bool:
    """Return whether something is mounted in or over a folder; False without a list of mounts."""
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            mounted = [line.split(b" ", 5)[4] for line in file]
    except (OSError, IndexError):
        return False
    path = os.fsencode(os.path.realpath(folder).translate(_ESCAPED))
    return any(one == path or one.startswith(path + b"/") for one in mounted)


def remove_left_folders(parent: str | Path) -> None:
    """Remove the folders of this user whose processes were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _PATTERN.fullmatch(entry.name):
                _remove_if_left(entry)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    """Remove a folder if it is one of ours, and its process is gone."""
    try:
        found = entry.stat(follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        descriptor = private(f"{entry.path}/{_LOCK}", os.O_RDWR)
    except (AttributeError, OSError):
        # Windows has no users of this kind.
        return
    # On a file system without what this takes, the folder stays.
    with contextlib.suppress(OSError), open(descriptor, "rb", buffering=0) as lock:
        # Only with the lock, so that of two sessions that start now, one removes it.
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and try_to_lock(descriptor):
            mark, _, text = lock.read(64).partition(_MARK)
            process, _, started = text.partition(b" ")
            if (
                text
                and not mark
                and process.isdigit()
                and not (started and _start_of(int(process)) == started)
            ):
                remove_tree(Path(entry.path), found)


def _start_of(process: int) -> bytes:
    """Return the start of a process in the kernel's clock ticks; empty if unknown or ended."""
    try:
        # The name of the process, in parentheses, may contain anything. proc(5): state is field 3,
        # starttime 22.
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        # No session may ever wait for a zombie.
        return b"" if fields[0] in (b"Z", b"X") else fields[19]
    except (OSError, IndexError):
        return b""
