"""Whether anything was made in, moved through or removed from a few folders since one last asked."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import sys
import time
from array import array
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from pytest_leakcheck.probes.own_descriptors import lift, open_high

# <sys/inotify.h>: made, removed, moved from, moved to; what is only written to stays the same entry.
_ENTRIES: Final = 0x100 | 0x200 | 0x40 | 0x80
# struct inotify_event: watch, mask, cookie, and the length of the name that follows.
_EVENT: Final = struct.Struct("iIII")
_BUFFER: Final = 1 << 16
# A change within one tick of the kernel's clock may leave the folder's times as they were: 10 ms at 100 Hz, and more on a
# virtual machine that has to wait for its turn.
_TICK: Final = 100_000_000


class Changes(Protocol):
    """Follows folders from the moment that it is made."""

    def take(self) -> Collection[str]:
        """The folders in which entries may have come or gone since the last call."""
        ...

    def close(self) -> None: ...


def follow(paths: Sequence[str]) -> Changes:
    """The quickest way to follow them here.

    Raises:
        OSError: One of them cannot be opened.
    """
    try:
        return Notices(paths)
    except OSError:
        # No inotify here, or the user's instances are used up (fs.inotify.max_user_instances).
        return Stamps(paths)


class Notices:
    """Asks inotify. Exact; 0.4 us for all folders together while nothing happens. Linux only.

    The kernel keeps whoever closes a queue waiting for what it follows to be let go of, 8 to 16 ms. So a queue is told to
    follow nothing any more, which takes 0.1 ms, and kept for the next: one descriptor of the process.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        if not sys.platform.startswith("linux"):
            raise OSError("inotify is of Linux")
        self._all = tuple(paths)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._open()

    def _open(self) -> None:
        self._process = os.getpid()
        kept = _kept.pop(self._process, -1)
        # By then the program may have closed it, by a range of numbers, and given the number to another file.
        self._queue = (
            kept if _is_queue(kept) else lift(_checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)))
        )
        try:
            self._paths = {
                _checked(self._libc.inotify_add_watch(self._queue, os.fsencode(path), _ENTRIES), path): path
                for path in self._all
            }
        except BaseException:
            os.close(self._queue)
            raise
        # A poll says that nothing has happened in a third of the time that a read takes to raise it.
        self._poll = select.poll()
        self._poll.register(self._queue, select.POLLIN)

    def take(self) -> Collection[str]:
        happened = self._poll.poll(0)
        if not happened:
            return ()
        if happened[0][1] & select.POLLNVAL:
            # The program closed what is not its own, by a range of numbers.
            self._open()
            return self._all
        changed: set[str] = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                events = os.read(self._queue, _BUFFER)
                at = 0
                while at < len(events):
                    watch, _mask, _cookie, length = _EVENT.unpack_from(events, at)
                    # The queue overflowed where it is not one of ours: anything may have happened.
                    changed.update((self._paths[watch],) if watch in self._paths else self._all)
                    at += _EVENT.size + length
        return changed

    def close(self) -> None:
        if not _is_queue(self._queue):
            return
        # A child that was forked shares the queue: what it let go of would be lost to its parent, too.
        if self._process != os.getpid() or self._process in _kept:
            os.close(self._queue)
            return
        for watch in self._paths:
            self._libc.inotify_rm_watch(self._queue, watch)
        # That is told as well.
        self.take()
        _kept[self._process] = self._queue


# By process: one that is forked must not take from its parent's.
_kept: Final[dict[int, int]] = {}


def _is_queue(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == "anon_inode:inotify"
    except OSError:
        return False


class Stamps:
    """Compares the folders' modification times; 0.9 us each. Lists once more than it must for a while after a change."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._folders: list[tuple[str, int, array[int]]] = []
        try:
            for path in paths:
                # Modification time, size and links, and when they were read (all 0: never).
                self._folders.append((path, open_high(path), array("q", (0, 0, 0, 0))))
        except BaseException:
            self.close()
            raise

    def take(self) -> Collection[str]:
        return [path for path, folder, stamp in self._folders if self._changed(folder, stamp)]

    def _changed(self, folder: int, stamp: array[int]) -> bool:
        now, status = time.time_ns(), os.fstat(folder)
        same = status.st_mtime_ns == stamp[0] and status.st_size == stamp[1] and status.st_nlink == stamp[2]
        if same and stamp[3] - stamp[0] > _TICK:
            return False
        stamp[0], stamp[1], stamp[2] = status.st_mtime_ns, status.st_size, status.st_nlink
        stamp[3] = now
        return True

    def close(self) -> None:
        for _path, folder, _stamp in self._folders:
            with contextlib.suppress(OSError):
                os.close(folder)


def _checked(result: int, path: str | None = None) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return result
