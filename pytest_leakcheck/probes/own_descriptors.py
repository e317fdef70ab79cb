"""Keep own descriptors at high numbers, notice their loss, and make room when all are used up."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

# The functions themselves: a test may replace those of the module.
from os import stat
from typing import Final

if sys.platform != "win32":
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

# The lowest descriptor number of the plugin, if the limit allows it. It is not higher, because the
# kernel's descriptor table grows to the highest number in use, by 8 bytes per number.
_LOWEST_HIGH_NUMBER: Final = 4000
# The high numbers below the limit. One measurement takes eight of them on Linux.
_HIGH_NUMBERS: Final = 24
# The number of descriptors that `room_for_descriptors` allows in addition.
_SPARE_DESCRIPTORS: Final = 64
# How often the program has put another file over a descriptor of the plugin. In an array, because a
# new int would be a block that the harness allocates.
_overwritten: Final = array("q", (0,))


class OwnFile:
    """A file of the plugin that stays open, and is reopened if the program takes its descriptor.

    A program may close a range of descriptors, or put other files over them (``dup2``), even one of
    the plugin's. So each use compares device and inode (0.6 us). What lies under the number by then
    is the program's, and stays.
    """

    __slots__ = ("_identity", "_open", "number")

    def __init__(self, opener: Callable[[], int]) -> None:
        self._open = opener
        self._identity = array("Q", (0, 0))
        self.number = -1
        self._begin()

    def check(self) -> os.stat_result | None:
        """Return the status of the file; None if the program has taken the descriptor away."""
        try:
            found = os.fstat(self.number)
        except OSError:
            return None
        identity = self._identity
        if found.st_ino == identity[0] and found.st_dev == identity[1]:
            return found
        # The number is forgotten, so this counts once.
        self.number = -1
        _overwritten[0] += 1
        return None

    def status(self) -> os.stat_result:
        """Return the file's status, after reopening it if the program has taken its descriptor."""
        found = self.check()
        if found is None:
            self._begin()
            found = os.fstat(self.number)
        return found

    def read(self, size: int, at: int = 0) -> bytes:
        self.status()
        return os.pread(self.number, size, at)

    def close(self) -> None:
        if self.check() is not None:
            os.close(self.number)
        self.number = -1

    def _begin(self) -> None:
        self.number = self._open()
        status = os.fstat(self.number)
        self._identity[0], self._identity[1] = status.st_ino, status.st_dev


def open_own(path: str) -> OwnFile:
    """Open a file for reading and keep it open.

    Its number is one that the program does not hit by closing another descriptor twice.
    """
    return OwnFile(lambda: _open_high(path))


def count_overwritten() -> int:
    """Return how often the program has put a file over the plugin's.

    Such files are the program's, and count.
    """
    return _overwritten[0]


def _open_high(path: str) -> int:
    return keep_high(os.open(path, os.O_RDONLY))


def keep_high(low: int) -> int:
    """Copy a descriptor to a high number, if the limit allows it, and close the original."""
    if sys.platform == "win32":
        return low
    try:
        import fcntl

        soft, _hard = getrlimit(RLIMIT_NOFILE)
        highest = _LOWEST_HIGH_NUMBER if soft == RLIM_INFINITY else soft - _HIGH_NUMBERS
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, max(3, min(highest, _LOWEST_HIGH_NUMBER)))
    finally:
        os.close(low)


def count_held() -> int:
    """Count open descriptors without opening one; 0 if impossible, such as before Linux 6.2."""
    try:
        return stat("/proc/self/fd").st_size
    except OSError:
        return 0


def count_open() -> int:
    """Count open descriptors; before Linux 6.2 by a listing, whose own descriptor counts too."""
    return count_held() or len(os.listdir("/proc/self/fd"))


def descriptors_left() -> int:
    """Return how many more descriptors this process may open.

    The number is large if there is no limit, or if it is not known how many are open.
    """
    if sys.platform == "win32" or not (held := count_held()):
        return sys.maxsize
    soft, _hard = getrlimit(RLIMIT_NOFILE)
    return sys.maxsize if soft == RLIM_INFINITY else max(0, soft - held)


def room_for_descriptors() -> AbstractContextManager[None]:
    """Raise the limit for a report if fewer than 64 descriptors are left."""
    if sys.platform == "win32":
        return nullcontext()
    soft, hard = getrlimit(RLIMIT_NOFILE)
    # It exceeds the limit if the program has lowered the limit since.
    held = count_held()
    if soft == RLIM_INFINITY or 0 < held <= soft - _SPARE_DESCRIPTORS:
        return nullcontext()
    wanted = max(soft, held) + _SPARE_DESCRIPTORS
    return raised_limit(RLIMIT_NOFILE, wanted if hard == RLIM_INFINITY else min(wanted, hard))


@contextmanager
def raised_limit(kind: int, soft: int) -> Iterator[None]:
    """Set a soft limit; restore the earlier one at the end unless the program has set another."""
    earlier, hard = getrlimit(kind)
    setrlimit(kind, (soft, hard))
    try:
        yield
    finally:
        if getrlimit(kind) == (soft, hard):
            setrlimit(kind, (earlier, hard))
