"""Which process made an entry of a folder, as Linux's fanotify reports it; C code and forked children included.

Without privileges (Linux 5.13) the kernel names this process and says of all others that they are not. Docker's default
profile forbids the call; then nothing is known from here.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Final

from pytest_leakcheck.probes.own_descriptors import lift
from pytest_leakcheck.probes.processes import descendants

# <linux/fanotify.h>: close on exec, do not block, report the folder with the name of the entry.
_FLAGS: Final = 0x1 | 0x2 | 0x400 | 0x800
# Made or moved here, folders too. What is removed is seen in the listing.
_ADD: Final = 0x1
_EVENTS: Final = 0x100 | 0x80 | 0x40000000
_OVERFLOW: Final = 0x4000
_AT_FDCWD: Final = -100
# struct fanotify_event_metadata: length, version, reserved, length of this part, mask, descriptor, process.
_EVENT: Final = struct.Struct("=IBBHQii")
# struct fanotify_event_info_fid: type, padding, length, file system; then the handle: its length, its type.
_INFO: Final = struct.Struct("=BBHii")
_HANDLE: Final = struct.Struct("=Ii")
# Small, since what is read is memory of the process that is measured.
_BUFFER: Final = 1 << 13
_KIND: Final = "anon_inode:[fanotify]"


class Makers:
    """Follows one folder. The queue is kept for the next to follow it: to close one takes the kernel 6 to 8 ms."""

    def __init__(self, path: str) -> None:
        """
        Raises:
            OSError: Not possible here.
        """
        if not sys.platform.startswith("linux"):
            raise OSError("fanotify is of Linux")
        self._key = os.getpid(), path
        for process, other in [key for key in _kept if key[0] == self._key[0] and key[1] not in (path, _SHARED)]:
            if path != _SHARED and _is_queue(queue := _kept.pop((process, other))):
                os.close(queue)
        if self._key not in _kept or not _is_queue(_kept[self._key]):
            _kept[self._key] = _open(path)
        self.take()

    def take(self) -> dict[str, int]:
        """By name, the process that made each entry since the last call; 0 is one that is not named, but another."""
        made: dict[str, int] = {}
        queue = _kept.get(self._key, -1)
        # A forked child shares the queue and must leave it alone; the program may have closed it, by a range of numbers.
        if os.getpid() != self._key[0] or not _is_queue(queue):
            return made
        try:
            while True:
                _read(os.read(queue, _BUFFER), made)
        except BlockingIOError:
            return made


class Children:
    """Whether this process has had any child since this object was made."""

    def __init__(self) -> None:
        self._before = _ended()

    def any(self) -> bool:
        """One that is alive, or has ended since."""
        if not hasattr(os, "waitid"):
            return True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return _ended() != self._before
        return _ended() != self._before or not _are_only_trackers(os.getpid())


def is_here(process: int) -> bool:
    """Whether a maker is this process, or one below it that is alive."""
    return process == os.getpid() or process in descendants(os.getpid())


def is_stranger(process: int, children: Children) -> bool:
    """Whether a maker is certainly neither this process nor below it. One that has ended might have been."""
    if process == os.getpid():
        return False
    if not children.any():
        return True
    return process > 0 and os.path.exists(f"/proc/{process}") and process not in descendants(os.getpid())


_kept: Final[dict[tuple[int, str], int]] = {}
# Followed beside the temporary folder, of which there is one at a time.
_SHARED: Final = "/dev/shm"  # noqa: S108


def _open(path: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    queue = lift(_checked(libc.fanotify_init(_FLAGS, 0)))
    try:
        _checked(libc.fanotify_mark(queue, _ADD, ctypes.c_uint64(_EVENTS), _AT_FDCWD, os.fsencode(path)))
    except OSError:
        os.close(queue)
        raise
    return queue


def _read(events: bytes, made: dict[str, int]) -> None:
    at = 0
    while at < len(events):
        length, _version, _reserved, head, mask, _descriptor, process = _EVENT.unpack_from(events, at)
        if not mask & _OVERFLOW:
            _type, _padding, size, *_system = _INFO.unpack_from(events, at + head)
            handle, _kind = _HANDLE.unpack_from(events, at + head + _INFO.size)
            name = events[at + head + _INFO.size + _HANDLE.size + handle : at + head + size]
            made[os.fsdecode(name.split(b"\0", 1)[0])] = process
        at += length


def _is_queue(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == _KIND
    except OSError:
        return False


def _are_only_trackers(process: int) -> bool:
    """Whether its only child is the one that `multiprocessing` starts to remove shared memory; that makes nothing."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    try:
        tasks = os.listdir(f"/proc/{process}/task")
        alive = {int(pid) for task in tasks for pid in _children_of(f"/proc/{process}/task/{task}/children")}
    except OSError:
        return False
    return alive <= {tracker}


def _children_of(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        return file.read().split()


def _ended() -> int:
    """Changes whenever a child has ended and was waited for: none runs without a page fault."""
    if not hasattr(os, "waitid"):
        return 0
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_minflt + used.ru_majflt


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
