"""Resident memory: the witness for what no exact counter sees."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.processes import open_high


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
