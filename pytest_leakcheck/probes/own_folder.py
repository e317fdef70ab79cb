"""Make the folders for this package's own temporary files, and remove those that killed processes have left.

Each has a lock file, which its process holds open and locked, with the process's number and start time. A folder is
removed by the process that has made it; by another one only if the lock is free and that process is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_descriptors import keep_high

PREFIX: Final = "leakcheck-"
_PATTERN: Final = re.compile(rf"{PREFIX}[a-z0-9_]{{8}}")
_LOCK: Final = "lock"
# The folder that this process uses, and the process: a forked child makes its own.
_OF_PROCESS: Final[list[tuple[Path, int]]] = []


def own_folder() -> Path:
    """Return the folder of this process, below the temporary folder; it is removed at the end of the process."""
    if not _OF_PROCESS or _OF_PROCESS[0][1] != os.getpid():
        folder = make_folder(tempfile.gettempdir())
        _OF_PROCESS[:] = [(folder, os.getpid())]
        remove_at_exit(folder)
    return _OF_PROCESS[0][0]


def use_folder(folder: Path) -> None:
    """Use a folder that another process has made for this one, and removes."""
    _OF_PROCESS[:] = [(folder, os.getpid())]


def make_folder(parent: str | Path) -> Path:
    """Create a folder for this user alone, and lock it for as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    descriptor = keep_high(private(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL))
    _try_to_lock(descriptor)
    os.write(descriptor, f"{os.getpid()} {_start_of(os.getpid())}".encode())
    return folder


@contextlib.contextmanager
def temporary_folder(parent: str | Path | None = None) -> Iterator[Path]:
    """Create a folder, and remove it at the end."""
    folder = make_folder(parent or tempfile.gettempdir())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_at_exit(folder: Path) -> None:
    """Remove a folder when this process ends, not a forked child: after what was imported later has cleaned up."""
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


def remove_left_folders(parent: str | Path) -> None:
    """Remove the folders of this user whose processes were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _PATTERN.fullmatch(entry.name) and _is_left(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _is_left(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is one of ours, and its process is gone."""
    try:
        found = entry.stat(follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        descriptor = private(f"{entry.path}/{_LOCK}", os.O_RDWR)
    except (AttributeError, OSError):
        # Windows has no users of this kind.
        return False
    try:
        process, _, started = os.read(descriptor, 64).partition(b" ")
        return (
            stat.S_ISREG(os.fstat(descriptor).st_mode)
            and _try_to_lock(descriptor)
            and process.isdigit()
            and _start_of(int(process)) != started.decode("ascii", "replace")
        )
    finally:
        os.close(descriptor)


def _try_to_lock(descriptor: int) -> bool:
    """Lock a file until it is closed in all processes; return False if another process has, or there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def _start_of(process: int) -> str:
    """Return when a process began, in ticks of the kernel's clock; empty if there is no such process."""
    try:
        # The name of the process, in parentheses, may contain anything. proc(5): starttime is field 22.
        text = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2]
        return text.split()[19].decode()
    except (OSError, IndexError):
        return ""
