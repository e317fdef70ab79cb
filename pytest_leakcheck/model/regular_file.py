"""Read, replace and append to regular files: at once or not at all, and with limits.

What is not ours to replace stays. A path may come from anyone. Opening a named pipe waits for the
other end, and ``/dev/zero`` has no end. Therefore, each file is opened without waiting and refused
unless it is a regular one.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import IO, Any, Final, NamedTuple

from pytest_leakcheck.model import LeakcheckError

# The function itself: a test may replace that of the module.
try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
except ImportError:  # Windows
    flock = None  # type: ignore[assignment]

# A report or a file of known leaks that is larger is refused.
MOST_BYTES: Final = 256 << 20
# How much of a file is read to see of what kind it is.
_BEGIN_BYTES: Final = 4096
# How often another process is given time to release the lock of a folder, and the seconds between
# two attempts. They are counted, because a test may stop the clock.
_ATTEMPTS: Final = 1500
_PAUSE: Final = 0.02
# Windows has none of these.
_CAREFULLY: Final[int] = sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)
_NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Ours(NamedTuple):
    """A kind of file that this package writes: its name, and how each begins.

    A file of the same kind may be replaced.
    """

    what: str
    begin: re.Pattern[bytes]


NEW: Final = Ours("a new file", re.compile(rb"(?!)"))
# Not beside its template: what renders a page is not loaded while tests are measured.
PAGE: Final = Ours(
    "a page of pytest-leakcheck",
    re.compile(
        rb'\s*<!doctype html>\s*<html lang="en">\s*<head>\s*<meta name="generator" content="pytest-leakcheck">'
    ),
)


class FileError(LeakcheckError, OSError):
    """A file cannot be read or written; the message names it, what is wrong, and what to do."""

    def __init__(self, path: Path, what: str, advice: str) -> None:
        # With a single argument, `str` and all that shows an `OSError` show the whole message.
        super().__init__(f"{path}: {what}; {advice}")


def open_regular(
    path: Path, mode: str = "rb", *, most: int = MOST_BYTES, follow: bool = True
) -> IO[Any]:
    """Open a regular file in mode ``rb``, ``r``, ``ab`` or ``r+b``, as UTF-8, or raise `OSError`.

    Nothing is waited for. Only ``ab`` creates the file. `most` limits the size of a file that is
    read. Unless it is to `follow` links, the file may not have a second name either.
    """
    flags = {"r": os.O_RDONLY, "a": os.O_WRONLY | os.O_APPEND | os.O_CREAT}.get(mode[0], 0)
    flags = os.O_RDWR if "+" in mode else flags
    with suppress(FileNotFoundError):
        # Also before it is opened, which has an effect on some devices.
        _refuse_others(path, os.stat(path, follow_symlinks=follow))
    descriptor = os.open(path, flags | _CAREFULLY | (0 if follow else _NO_LINK), 0o666)
    try:
        status = os.fstat(descriptor)
        _refuse_others(path, status, most if mode[0] == "r" else None, names=None if follow else 1)
        text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "errors": "replace"}
        return (
            open(descriptor, mode, **text)
            if text
            else open(descriptor, mode, buffering=0 if "a" in mode else -1)
        )
    except BaseException:
        os.close(descriptor)
        raise


def _refuse_others(
    path: Path, status: os.stat_result, most: int | None = None, names: int | None = None
) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "a link")
        raise FileError(path, f"{kind}, not a regular file", "name a regular file")
    if names is not None and status.st_nlink > names:
        raise FileError(path, "it has a second name", "remove the other one, or name another file")
    if most is not None and status.st_size > most:
        raise FileError(
            path, f"{status.st_size:,} bytes, of at most {most:,}", "name a smaller file"
        )


def append(path: Path, data: bytes, *, same_as: tuple[int, int] | None = None) -> int:
    """Append to a regular file; return how much is written: less if the disk is almost full.

    With `same_as`, the device and number of the file, no other file is written to, nor is one
    created.
    """
    if same_as is not None and same_as != _identify(path):
        raise FileNotFoundError(
            errno.ENOENT, "the file or its folder was removed while the tests ran"
        )
    with open_regular(path, "ab") as file:
        written: int = file.write(data)
        return written


def _identify(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def write_all(file: IO[bytes], data: bytes) -> None:
    """Write to an unbuffered file, or raise `OSError`."""
    # A disk that is almost full takes a part, and then nothing.
    while data:
        data = data[file.write(data) :]


class Replaced:
    """A file whose lock is held (`locked`): it is replaced as a whole, or stays as it is.

    If its path is a link, what the link leads to is replaced, and the link stays.
    """

    def __init__(self, path: Path, folder: int | None) -> None:
        self.path = path
        self._target = Path(os.path.realpath(path))
        self._folder = folder
        # The middle of a name has a limit, too.
        self._temporary = re.compile(
            rf"\.{re.escape(self._target.name[:100])}\.leakcheck-[0-9a-f]{{16}}\.tmp"
        )

    def refuse_unless(self, ours: Ours) -> None:
        """Raise `OSError` unless the file does not exist, is empty, or is of the same kind."""
        with suppress(FileNotFoundError), open_regular(self._target, "r+b", most=1 << 63) as file:
            begin = file.read(_BEGIN_BYTES)
            if begin and ours.begin.match(begin) is None:
                raise FileError(
                    self.path,
                    f"it exists, and is not {ours.what}",
                    "name another file, or remove this one",
                )

    def try_to_create(self) -> None:
        """Raise `OSError` if no file can be created in the folder, so that none can be replaced."""
        descriptor, temporary = self._create(0o600)
        os.close(descriptor)
        os.unlink(temporary)

    def replace(self, content: bytes) -> os.stat_result:
        """Replace the file and return the new status; raise `OSError` if the old file must stay.

        The new file has the permissions of the old one. When this returns, it is on disk.
        """
        old: os.stat_result | None = None
        with suppress(FileNotFoundError):
            old = os.stat(self._target)
            _refuse_others(self.path, old)
        descriptor, temporary = self._create(0o666 if old is None else 0o600)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                write_all(file, content)
                if old is not None:
                    _take_over(descriptor, old)
                os.fsync(descriptor)
                new = os.fstat(descriptor)
            os.replace(temporary, self._target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        if self._folder is not None:
            with suppress(OSError):
                # Some file systems cannot; the file itself is there.
                os.fsync(self._folder)
        return new

    def sweep(self) -> None:
        """Remove what killed processes have left: they have lost the lock, and it is held here."""
        with os.scandir(self._target.parent) as entries:
            left = [
                entry.path
                for entry in entries
                if self._temporary.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        for path in left:
            with suppress(OSError):
                os.unlink(path)

    def _create(self, mode: int) -> tuple[int, str]:
        name = f".{self._target.name[:100]}.leakcheck-{os.urandom(8).hex()}.tmp"
        path = str(self._target.parent / name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _CAREFULLY
        return os.open(path, flags, mode), path


def _take_over(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the owner and the permissions of the old one, as far as this user may."""
    if hasattr(os, "fchown"):
        with suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


@contextmanager
def locked(path: Path) -> Iterator[Replaced]:
    """Keep other processes of this plugin from replacing files in the folder of a file.

    Raise `FileError` on failure; an `OSError` inside becomes one, too. Without locks, as on Windows
    and some network drives, each file is still replaced as a whole, but of two updates at once one
    may be lost.
    """
    descriptor: int | None = None
    try:
        # The folder itself is locked, so that no lock file stays. It may be one that cannot be
        # read.
        with suppress(PermissionError):
            descriptor = os.open(os.path.dirname(os.path.realpath(path)), os.O_RDONLY | _CAREFULLY)
        file = Replaced(path, descriptor)
        if descriptor is not None and _lock(descriptor, path):
            file.sweep()
        yield file
    except FileError:
        raise
    except OSError as error:
        raise FileError(path, error.strerror or str(error), _advise(error)) from None
    finally:
        if descriptor is not None:
            _unlock(descriptor)


def try_to_lock(descriptor: int) -> bool:
    """Lock a file until it is closed in all processes; return False if there are no locks.

    Raise `BlockingIOError` or `InterruptedError` if another process has the lock.
    """
    if flock is None:
        return False
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except (BlockingIOError, InterruptedError):
        raise
    except OSError:
        return False
    return True


def _lock(descriptor: int, path: Path) -> bool:
    for _attempt in range(_ATTEMPTS):
        try:
            return try_to_lock(descriptor)
        except (BlockingIOError, InterruptedError):
            sleep(_PAUSE)
    seconds = f"{_ATTEMPTS * _PAUSE:g} s"
    raise FileError(
        path,
        f"another process has locked its folder for {seconds}",
        "end that process, or name another file",
    )


def _unlock(descriptor: int) -> None:
    if flock is not None:
        with suppress(OSError):
            # A forked child may have a copy of the descriptor, which would keep the lock.
            flock(descriptor, LOCK_UN)
    os.close(descriptor)


def _advise(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space, or name a file elsewhere"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n)"
    return "name a file in a writable folder"


def replace_file(path: Path, content: bytes, ours: Ours) -> os.stat_result:
    """Replace a file as a whole, if it may be (`Replaced.refuse_unless`), or raise `FileError`."""
    with locked(path) as file:
        file.refuse_unless(ours)
        return file.replace(content)


def check_replaceable(path: Path, ours: Ours) -> None:
    """Raise `FileError` if `replace_file` would."""
    with locked(path) as file:
        file.refuse_unless(ours)
        file.try_to_create()
