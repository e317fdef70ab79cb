"""Bytes that native code holds: what malloc handed out and did not get back."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from pytest_leakcheck.probes.base import Unavailable


class _Mallinfo2(ctypes.Structure):
    # The order is glibc's (malloc.h): all are size_t.
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


# glibc keeps up to 7 freed blocks of each of 64 sizes per thread, and counts them as in use (malloc/malloc.c, tcache).
_SIZES: Final = tuple(range(24, 1033, 16))
_DEEP: Final = 7


def _libc() -> ctypes.PyDLL:
    return _load(ctypes.PyDLL)


@cache
def _load(kind: type[ctypes.PyDLL]) -> ctypes.PyDLL:
    # Once: a library and its functions refer to each other, and such a cycle was reported as the test's.
    libc = kind(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.restype = None
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


def _fill_thread_cache() -> None:
    """Fill this thread's cache of freed blocks.

    A program that frees blocks of mixed sizes fills it by and by, up to 230 KB, which looks like a leak of some 300
    bytes per iteration for hundreds of iterations. Full from the start, it can only be drawn on and filled again.
    """
    libc = _libc()
    for size in _SIZES:
        blocks = [libc.malloc(size) for _ in range(_DEEP)]
        for block in blocks:
            libc.free(block)


@contextmanager
def drained_thread_cache() -> Iterator[None]:
    """Take all that this thread's cache of freed blocks holds, and give it back in the end.

    A block that comes from the cache counted as in use before, so what keeps it does not show. Emptied once, the cache
    fills with what the program itself frees, and what that keeps is no longer there.
    """
    libc = _libc()
    blocks = [libc.malloc(size) for size in _SIZES for _ in range(_DEEP)]
    try:
        yield
    finally:
        for block in blocks:
            libc.free(block)


# Bytes of a block that no allocator rounds away or maps by itself, and how many at once: more than a cache of freed ones holds.
_TRIED: Final = 1 << 16
_AT_ONCE: Final = (1, 1, 32)


def _counts_malloc(read: Callable[[], int]) -> bool:
    """Whether a reading moves with what malloc hands out; another thread that frees at that moment may hide it once."""
    try:
        libc = _libc()
    except (AttributeError, OSError):
        # There is nothing to try it with.
        return True
    for count in _AT_ONCE:
        before = read()
        blocks = [libc.malloc(_TRIED) for _ in range(count)]
        held = read() - before
        for block in blocks:
            libc.free(block)
        if held >= _TRIED:
            return True
    return False


def _malloc_of_another() -> Unavailable:
    address = ctypes.cast(ctypes.PyDLL(None).malloc, ctypes.c_void_p).value or 0
    whose = f"it is that of {_library_at(address) or 'a library that is not known'}, whose bytes glibc does not count"
    return Unavailable(f"malloc is not glibc's: {whose}; start Python without it (LD_PRELOAD?), or use rss_budget")


def _library_at(address: int) -> str:
    """The file that is mapped there; empty where that cannot be told."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(maxsplit=5)
                start, _, end = fields[0].partition("-")
                if int(start, 16) <= address < int(end, 16):
                    return os.path.basename(fields[5].strip()) if len(fields) == 6 else ""
    except OSError:
        pass
    return ""


# numpy keeps up to 7 freed blocks of each size below 1024 bytes for itself (numpy/_core/src/multiarray/alloc.c).
_NUMPY_SIZES: Final = range(1, 1024)
_NUMPY_DEEP: Final = 7


def _fill_numpy_cache() -> None:
    """Fill numpy's cache of freed blocks, where numpy is loaded: 4 ms, and 3.5 MB once.

    A program whose arrays are small and of ever other sizes (figures, masks of tables) fills it over thousands of
    iterations, at hundreds of bytes each. It belongs to the process and not to a thread.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    for size in _NUMPY_SIZES:
        blocks = [numpy.empty(size, "u1") for _ in range(_NUMPY_DEEP)]
        del blocks


def is_quiet() -> bool:
    """Whether malloc counts a block as free as soon as it is freed: no thread's cache holds any (see `runner.processes.supervisor`).

    Tried rather than read from the environment, which says neither what the C library knows nor what it made of it.
    """
    heap = Heap()
    try:
        heap.open()
    except Unavailable:
        return False
    libc = _libc()
    before = heap.read()
    # One more than a cache holds, of its largest size: with a cache, either they are not all new or they do not all go.
    blocks = [libc.malloc(_SIZES[-1]) for _ in range(_DEEP + 1)]
    held = heap.read() - before
    for block in blocks:
        libc.free(block)
    return held >= _SIZES[-1] * len(blocks) and heap.read() == before


class Heap:
    """``heap``: bytes in use in all arenas plus mapped chunks, from glibc's ``mallinfo2``.

    Resolution: one chunk (32 bytes for ``malloc(8)``). Noise: a chunk freed into a thread's cache still counts as used; the
    measuring thread's is filled beforehand.
    Cost: 0.3 to 3 us; it walks the free lists, so a heap with 10,000 holes takes 0.5 ms. Scope: this process.
    Does not see: small Python objects (they live in pymalloc's own arenas), pools that map their own memory, mmap.
    Where another malloc was loaded before glibc's (jemalloc or tcmalloc, by LD_PRELOAD) ``mallinfo2`` is there and counts
    nothing; that is tried, and then it is unavailable.
    Fallback: ``psutil.heap_info`` where libc has no ``mallinfo2`` (macOS, Windows, glibc before 2.33); without either
    (musl) it is unavailable.
    """

    resource = "heap"

    def open(self) -> None:
        try:
            # PyDLL keeps the GIL: no hand-over to another thread in the middle of a reading.
            function = ctypes.PyDLL(None).mallinfo2
        except (AttributeError, OSError, TypeError):
            self._read = _psutil_heap()
            if sys.platform.startswith("linux") and not _counts_malloc(self._read):
                raise _malloc_of_another() from None
            return
        function.restype = _Mallinfo2
        function.argtypes = []

        def read() -> int:
            info = function()
            return int(info.uordblks + info.hblkhd)

        if not _counts_malloc(read):
            raise _malloc_of_another()
        self._read = read
        # The thread's cache last: filling numpy's draws on it.
        _fill_numpy_cache()
        _fill_thread_cache()

    def read(self) -> int:
        return self._read()

    def close(self) -> None:
        """Nothing was opened."""


def _psutil_heap() -> Callable[[], int]:
    import psutil

    heap_info: Any = getattr(psutil, "heap_info", None)
    if heap_info is None:
        raise Unavailable(
            "neither the C library (mallinfo2: glibc 2.33 or newer) nor psutil (heap_info: 7.2 or newer) counts "
            "malloc's bytes here; rss_budget needs neither"
        )

    def read() -> int:
        info = heap_info()
        return int(info.heap_used + info.mmap_used)

    return read
