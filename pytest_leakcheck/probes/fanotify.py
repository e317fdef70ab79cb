"""Report which process created an entry of a folder, also in C code, with Linux's fanotify.

Without privileges (allowed from Linux 5.13 on), the kernel reports only this process's id, and 0 for all others, such
as forked children. Docker's default profile forbids the call; then `Makers` raises an error.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Final

from pytest_leakcheck.probes.libc import load_libc
from pytest_leakcheck.probes.own_descriptors import lift
from pytest_leakcheck.probes.processes import descendants

# <linux/fanotify.h>: FAN_CLOEXEC, FAN_NONBLOCK, FAN_REPORT_DIR_FID, FAN_REPORT_NAME (report the folder with the name of
# the entry).
_INIT_FLAGS: Final = 0x1 | 0x2 | 0x400 | 0x800
_FAN_MARK_ADD: Final = 0x1
# FAN_CREATE, FAN_MOVED_TO and FAN_ONDIR (report new folders too). Removals are not needed: the next listing shows them.
_FOLLOWED_EVENTS: Final = 0x100 | 0x80 | 0x40000000
_FAN_Q_OVERFLOW: Final = 0x4000
_AT_FDCWD: Final = -100
# struct fanotify_event_metadata: length, version, reserved, length of this part, mask, descriptor, process.
_EVENT_HEADER: Final = struct.Struct("=IBBHQii")
# struct fanotify_event_info_fid: type, padding, length, file system; then the handle: its length, its type.
_INFO_HEADER: Final = struct.Struct("=BBHii")
_HANDLE_HEADER: Final = struct.Struct("=Ii")
# The size of the read buffer in bytes. It is small, because the buffer is memory of the measured process.
_BUFFER_BYTES: Final = 1 << 13
_QUEUE_LINK: Final = "anon_inode:[fanotify]"


class Makers:
    """The creators of new entries in one folder; the next `Makers` reuses the queue, as closing it takes 6 to 8 ms."""

    def __init__(self, path: str) -> None:
        """Start following the folder, and discard earlier events; raise OSError where fanotify is not available."""
        if not sys.platform.startswith("linux"):
            raise OSError("fanotify exists only on Linux")
        self._key = os.getpid(), path
        for process, other in [
            key for key in _open_queues if key[0] == self._key[0] and key[1] not in (path, _SHM_FOLDER)
        ]:
            if path != _SHM_FOLDER and _is_queue(queue := _open_queues.pop((process, other))):
                os.close(queue)
        if self._key not in _open_queues or not _is_queue(_open_queues[self._key]):
            _open_queues[self._key] = _open(path)
        self.take()

    def take(self) -> dict[str, int]:
        """Return the process ids of creators since the last call, by entry name; 0 if the kernel does not report it."""
        made: dict[str, int] = {}
        queue = _open_queues.get(self._key, -1)
        # A forked child shares the queue and must not read from it. The program may have closed the queue by closing a
        # range of descriptors.
        if os.getpid() != self._key[0] or not _is_queue(queue):
            return made
        try:
            while True:
                _parse_events(os.read(queue, _BUFFER_BYTES), made)
        except BlockingIOError:
            return made


class Children:
    """A detector of child processes that this process has had since the detector's creation."""

    def __init__(self) -> None:
        self._faults_before = _count_child_faults()

    def any(self) -> bool:
        """Return whether a child lives, but for the tracker, or has ended since creation; True without `os.waitid`."""
        if not hasattr(os, "waitid"):
            return True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return _count_child_faults() != self._faults_before
        return _count_child_faults() != self._faults_before or not _has_only_tracker_child(os.getpid())


def is_here(process: int) -> bool:
    """Return whether the process is this one or a live descendant of it."""
    return process == os.getpid() or process in descendants(os.getpid())


def is_stranger(process: int, children: Children) -> bool:
    """Return whether the process is certainly neither this one nor a descendant; one that has ended may have been."""
    if process == os.getpid():
        return False
    if not children.any():
        return True
    return process > 0 and os.path.exists(f"/proc/{process}") and process not in descendants(os.getpid())


_open_queues: Final[dict[tuple[int, str], int]] = {}
# Followed in addition to the temporary folder. Only one temporary folder is followed at a time.
_SHM_FOLDER: Final = "/dev/shm"  # noqa: S108


def _open(path: str) -> int:
    libc = load_libc()
    queue = lift(_checked(libc.fanotify_init(_INIT_FLAGS, 0)))
    try:
        _checked(
            libc.fanotify_mark(queue, _FAN_MARK_ADD, ctypes.c_uint64(_FOLLOWED_EVENTS), _AT_FDCWD, os.fsencode(path))
        )
    except OSError:
        os.close(queue)
        raise
    return queue


def _parse_events(events: bytes, made: dict[str, int]) -> None:
    at = 0
    while at < len(events):
        length, _version, _reserved, head, mask, _descriptor, process = _EVENT_HEADER.unpack_from(events, at)
        if not mask & _FAN_Q_OVERFLOW:
            _type, _padding, size, *_system = _INFO_HEADER.unpack_from(events, at + head)
            handle, _kind = _HANDLE_HEADER.unpack_from(events, at + head + _INFO_HEADER.size)
            name = events[at + head + _INFO_HEADER.size + _HANDLE_HEADER.size + handle : at + head + size]
            made[os.fsdecode(name.split(b"\0", 1)[0])] = process
        at += length


def _is_queue(descriptor: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}") == _QUEUE_LINK
    except OSError:
        return False


def _has_only_tracker_child(process: int) -> bool:
    """Return whether only the resource tracker of `multiprocessing` lives, which creates no entries."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(getattr(module, "_resource_tracker", None), "_pid", None)
    try:
        tasks = os.listdir(f"/proc/{process}/task")
        alive = {int(pid) for task in tasks for pid in _read_children(f"/proc/{process}/task/{task}/children")}
    except OSError:
        return False
    return alive <= {tracker}


def _read_children(path: str) -> list[bytes]:
    with open(path, "rb") as file:
        return file.read().split()


def _count_child_faults() -> int:
    """Return the page faults of children that were waited for; each such child adds at least one."""
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
