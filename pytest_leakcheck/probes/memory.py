"""Memory of the process: resident (`Rss`), its peak (`PeakRss`), and mapped address space (`Mapped`)."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Final

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.own_descriptors import open_high

# <proc(5)>: sets the mark back to what is resident now.
_RESET: Final = b"5"
PAGE: Final = 4096 if sys.platform == "win32" else os.sysconf("SC_PAGE_SIZE")


class Rss:
    """``rss``: anonymous resident bytes (RssAnon) after ``malloc_trim``.

    Resolution: a page; kernels before 6.17 are off by up to 64 pages per CPU. Noise: the allocator keeps freed pages, so
    trimming comes first; what is left wanders by megabytes where work comes in sizes. Cost: 8 us plus the trim (2 us to
    1.4 ms), hence read only when a test asks for it. Scope: this process. File pages (RssFile) are left out: reading a
    mapped file is no leak. Fallback: none yet outside Linux.
    """

    resource = "rss"

    def __init__(self) -> None:
        self._status = -1
        self._trim: Any = None

    def open(self) -> None:
        try:
            self._status = open_high("/proc/self/status")
        except (OSError, ImportError):
            raise Unavailable("resident memory is read from /proc/self/status, which only Linux has") from None
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def read(self) -> int:
        if self._trim is not None:
            self._trim(0)
        text = os.pread(self._status, 4096, 0)
        at = text.index(b"RssAnon:") + 8
        return int(text[at : text.index(b"kB", at)]) * 1024

    def close(self) -> None:
        os.close(self._status)


class PeakRss:
    """The highest number of resident bytes (VmHWM) since the last `reset`.

    Resolution: 128 KiB per CPU that the process runs on, since the kernel keeps the mark by counters that each adds to in
    batches of 32 pages; `now` is exact from kernel 6.17 on, and off by as much before.
    Cost: 10 us, and a trim; `now` 1.2 us. Scope: this process. Pages of files that are touched for the first time count: a library
    that is loaded meanwhile is a constant part of the peak. Fallback: none outside Linux.
    """

    resource = "rss"

    def __init__(self) -> None:
        self._status = self._clear = self._statm = -1
        self._trim: Any = None

    def open(self) -> None:
        """
        Raises:
            Unavailable: The mark cannot be set back here.
        """
        if not sys.platform.startswith("linux"):
            raise Unavailable("the peak of resident memory is read from /proc, which only Linux has")
        try:
            self._status = open_high("/proc/self/status")
            self._statm = open_high("/proc/self/statm")
            self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._clear, _RESET)
        except OSError as error:
            self.close()
            raise Unavailable(
                f"the peak of resident memory cannot be set back: /proc/self/clear_refs: {error.strerror}"
            ) from None
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)

    def trim(self) -> None:
        """Give back what the allocator keeps: it would take in the first growth unseen."""
        if self._trim is not None:
            self._trim(0)

    def reset(self) -> int:
        """Begin anew from what is resident now, and say how much that is."""
        os.write(self._clear, _RESET)
        return self._of(b"VmRSS:")

    def read(self) -> int:
        return self._of(b"VmHWM:")

    def now(self) -> int:
        """What is resident at this moment."""
        return int(os.pread(self._statm, 64, 0).split(None, 2)[1]) * PAGE

    def close(self) -> None:
        for descriptor in (self._status, self._clear, self._statm):
            if descriptor >= 0:
                os.close(descriptor)
        self._status = self._clear = self._statm = -1

    def _of(self, name: bytes) -> int:
        text = os.pread(self._status, 4096, 0)
        at = text.index(name) + len(name)
        return int(text[at : text.index(b"kB", at)]) * 1024


def peak_of(pid: int) -> int:
    """The same mark of another process, since it began; 0 where it is gone or may not be read."""
    return _of_process(pid, b"VmHWM:")


def anonymous_of(pid: int) -> int:
    """What is resident of another process, pages of files left out: a fork begins with these. 0 as above."""
    return _of_process(pid, b"RssAnon:")


def _of_process(pid: int, name: bytes) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
        at = text.index(name) + len(name)
        return int(text[at : text.index(b"kB", at)]) * 1024
    except (OSError, ValueError):
        return 0


class Mapped:
    """``mmap``: bytes of address space, as the kernel counts them (the first number of ``/proc/self/statm``).

    Resolution: a page. Noise: allocators map and unmap by the megabyte, so levels closer than 1 MiB cannot be told
    apart, and only growth that holds over the horizon counts. Cost: 1.3 us. Scope: this process. Sees what no other
    counter does: files and memory mapped by C and never unmapped. Fallback: none outside Linux.
    """

    resource = "mmap"

    def __init__(self) -> None:
        self._statm = -1

    def open(self) -> None:
        try:
            self._statm = open_high("/proc/self/statm")
        except (OSError, ImportError):
            raise Unavailable("mapped bytes are read from /proc/self/statm, which only Linux has") from None

    def read(self) -> int:
        text = os.pread(self._statm, 24, 0)
        return int(text[: text.index(b" ")]) * PAGE

    def close(self) -> None:
        os.close(self._statm)
