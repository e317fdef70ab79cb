"""Write a report to a path: replace a regular file in one step, but open and write to anything else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Final

# Descriptors of standard output and standard error, to which /dev/stdout and /dev/fd/1 also lead.
_STANDARD_STREAMS: Final = (1, 2)


def check_writable(path: Path) -> str:
    """Return why a report cannot be written to a path; empty if it can. Leave no trace in the file system."""
    try:
        existing = _stat_existing(path)
        if existing is not None and _find_stream(existing) is not None:
            return ""
        if existing is not None and not stat.S_ISREG(existing.st_mode):
            return _reason_not_writable(path, existing.st_mode)
        target = _resolve_link(path)
        if not target.parent.is_dir():
            return f"the folder {target.parent} does not exist"
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        if existing is not None and not os.access(path, os.W_OK):
            return "exists and is not writable"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_replaceable(path: Path) -> bool:
    """Return whether `write_whole` replaces what is at this path, or creates a file there."""
    existing = _stat_existing(path)
    return existing is None or (stat.S_ISREG(existing.st_mode) and _find_stream(existing) is None)


def append(path: Path, text: str) -> None:
    """Append a text to a file that exists; if that raises `OSError`, the file is as before."""
    before = path.stat().st_size
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        # A part of the text may be in the file.
        os.truncate(path, before)
        raise


def write_whole(path: Path, text: str | bytes) -> None:
    """Write a text, or bytes, to a file: replace a regular file in one step, so that a reader never sees half of it.

    The file keeps its mode. If the path is a symbolic link, its target is replaced and the link stays. A pipe, terminal
    or other device is not replaced but written to, and so is a file to which a standard stream is redirected.

    Raises:
        OSError: The folder no longer exists, the disk is full, or no process reads the pipe. A file that existed before
            is still there.
    """
    # File names may contain bytes that are not UTF-8. The error handler turns each into an escape that JSON accepts.
    content = text if isinstance(text, bytes) else text.encode("utf-8", errors="backslashreplace")
    existing = _stat_existing(path)
    if existing is None or is_replaceable(path):
        _replace(_resolve_link(path), content, existing)
        return
    with os.fdopen(_open_special(path, existing), "wb") as file:
        file.write(content)


def _stat_existing(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _resolve_link(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path


def _find_stream(existing: os.stat_result) -> int | None:
    """Return the descriptor of the standard stream that writes to this file, which must then not be replaced."""
    for number in _STANDARD_STREAMS:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), existing):
                return number
    return None


def _reason_not_writable(path: Path, mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "is a folder"
    if stat.S_ISBLK(mode):
        return "is a block device"
    if stat.S_ISSOCK(mode):
        return "is a socket"
    # Check without opening the path. Opening a pipe would wait for a reader, and closing it would end that reader.
    return "" if os.access(path, os.W_OK) else "exists and is not writable"


def _open_special(path: Path, existing: os.stat_result) -> int:
    stream = _find_stream(existing)
    if stream is not None:
        for file in (sys.stdout, sys.stderr):
            # Text printed earlier must come first. Either stream may be closed or replaced.
            with contextlib.suppress(AttributeError, OSError, ValueError):
                file.flush()
        return os.dup(stream)
    if reason := _reason_not_writable(path, existing.st_mode):
        raise OSError(errno.EINVAL, reason)
    try:
        # O_NONBLOCK makes a pipe without a reader an error; waiting for a reader might never end.
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
            # Change the mode by name, because Windows cannot change the mode of a descriptor.
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
    # If the original group could not be kept, drop its permissions, so that another group does not gain them.
    return mode if os.fstat(descriptor).st_gid == earlier.st_gid else mode & ~0o070


def _umask() -> int:
    current = os.umask(0o077)
    os.umask(current)
    return current
