"""Where a report goes: a regular file is replaced whole, anything else is opened and written."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

# Standard output and standard error: also what /dev/stdout and /dev/fd/1 lead to.
_STREAMS: Final = (1, 2)


def check_writable(path: Path) -> str:
    """Why a report cannot be written there, or nothing. Leaves no trace, and what stands there untouched."""
    try:
        there = _look(path)
        if there is not None and _stream(there) is not None:
            return ""
        if there is not None and not stat.S_ISREG(there.st_mode):
            return _why_not_opened(path, there.st_mode)
        target = _target(path)
        if not target.parent.is_dir():
            return f"the folder {target.parent} does not exist"
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        if there is not None and not os.access(path, os.W_OK):
            return "exists and may not be written"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def write_whole(path: Path, text: str) -> None:
    """Write a text where a path leads.

    A regular file is replaced in one step, and keeps its mode: a reader never sees half of it. A symbolic link stays, and
    what it leads to is replaced. A pipe, a terminal or another device is opened and written.

    Raises:
        OSError: The folder went away, the disk is full, or nobody reads the pipe; an earlier file is then still there.
    """
    # A file's name may hold bytes that are no UTF-8; written with a backslash they are an escape that JSON knows.
    content = text.encode("utf-8", errors="backslashreplace")
    there = _look(path)
    if there is None or (stat.S_ISREG(there.st_mode) and _stream(there) is None):
        _replace(_target(path), content, there)
        return
    with os.fdopen(_open(path, there), "wb") as file:
        file.write(content)


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _target(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path


def _stream(there: os.stat_result) -> int | None:
    """Which of this process's own streams that is; a file that one is redirected to must not be replaced under it."""
    for number in _STREAMS:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), there):
                return number
    return None


def _why_not_opened(path: Path, mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "is a folder"
    if stat.S_ISBLK(mode):
        return "is a block device"
    if stat.S_ISSOCK(mode):
        return "is a socket"
    # Not opened to try it: that would wait for a reader, or end one.
    return "" if os.access(path, os.W_OK) else "exists and may not be written"


def _open(path: Path, there: os.stat_result) -> int:
    stream = _stream(there)
    if stream is not None:
        for file in (sys.stdout, sys.stderr):
            # What was printed before comes before; either may be closed or replaced.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                file.flush()
        return os.dup(stream)
    if why_not := _why_not_opened(path, there.st_mode):
        raise OSError(errno.EINVAL, why_not)
    try:
        # A pipe that nobody reads is an error, where waiting for a reader might never end.
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no process has it open for reading") from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def _replace(target: Path, content: bytes, earlier: os.stat_result | None) -> None:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if earlier is not None:
                _keep_owner(descriptor, earlier)
            # By name: Windows has it so alone.
            Path(name).chmod(0o666 & ~_umask() if earlier is None else _mode_to_keep(descriptor, earlier))
            file.write(content)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _keep_owner(descriptor: int, earlier: os.stat_result) -> None:
    if not hasattr(os, "fchown"):
        return
    with contextlib.suppress(OSError):
        os.fchown(descriptor, earlier.st_uid, earlier.st_gid)


def _mode_to_keep(descriptor: int, earlier: os.stat_result) -> int:
    mode = stat.S_IMODE(earlier.st_mode) & 0o777
    # What one group was allowed is nothing for another.
    return mode if os.fstat(descriptor).st_gid == earlier.st_gid else mode & ~0o070


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
