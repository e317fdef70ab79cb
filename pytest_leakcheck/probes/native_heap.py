"""Count the bytes that native code has allocated with malloc and not freed."""

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
    # The fields in the order of glibc's malloc.h; all are size_t.
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


# glibc keeps up to 7 freed blocks of each of 64 sizes (in bytes) per thread, and counts them as in use
# (malloc/malloc.c, tcache).
_TCACHE_SIZES: Final = tuple(range(24, 1033, 16))
_TCACHE_DEPTH: Final = 7


def _libc() -> ctypes.PyDLL:
    return _load_libc(ctypes.PyDLL)


@cache
def _load_libc(kind: type[ctypes.PyDLL]) -> ctypes.PyDLL:
    # Cached, because a library and its functions form a reference cycle, which the plugin once reported as the test's
    # leak.
    libc = kind(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.restype = None
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


def _fill_thread_cache() -> None:
    """Fill this thread's cache of freed blocks.

    A program that frees blocks of mixed sizes fills the cache gradually, up to 230 KB. That looks like a leak of about
    300 bytes per iteration for hundreds of iterations. A cache that is full from the start cannot grow further.
    """
    libc = _libc()
    for size in _TCACHE_SIZES:
        blocks = [libc.malloc(size) for _ in range(_TCACHE_DEPTH)]
        for block in blocks:
            libc.free(block)


@contextmanager
def drained_thread_cache() -> Iterator[None]:
    """Allocate all blocks in this thread's cache of freed blocks, and free them on exit.

    A cached block counts as in use, so the heap counter does not rise if the program takes one and retains it. The
    emptied cache refills only with blocks that the program frees. Blocks that the program retains then raise the
    counter.
    """
    libc = _libc()
    blocks = [libc.malloc(size) for size in _TCACHE_SIZES for _ in range(_TCACHE_DEPTH)]
    try:
        yield
    finally:
        for block in blocks:
            libc.free(block)


# The bytes of a test block: large enough not to be rounded away, and small enough not to be mapped separately.
_TEST_BLOCK_BYTES: Final = 1 << 16
# The number of blocks in each try. A cache of freed blocks holds fewer than 32.
_TEST_BLOCK_COUNTS: Final = (1, 1, 32)


def _counts_malloc(read: Callable[[], int]) -> bool:
    """Return whether a reading rises with malloc's allocations.

    It tries several times, because another thread that frees memory at the same moment may hide a rise.
    """
    try:
        libc = _libc()
    except (AttributeError, OSError):
        # There is no malloc to try.
        return True
    for count in _TEST_BLOCK_COUNTS:
        before = read()
        blocks = [libc.malloc(_TEST_BLOCK_BYTES) for _ in range(count)]
        held = read() - before
        for block in blocks:
            libc.free(block)
        if held >= _TEST_BLOCK_BYTES:
            return True
    return False


def _foreign_malloc_error() -> Unavailable:
    address = ctypes.cast(ctypes.PyDLL(None).malloc, ctypes.c_void_p).value or 0
    whose = f"it is from {_library_at(address) or 'an unknown library'}, whose bytes glibc does not count"
    return Unavailable(f"malloc is not glibc's: {whose}; start Python without it (LD_PRELOAD?), or use rss_budget")


def _library_at(address: int) -> str:
    """Return the name of the file that is mapped at an address; empty if unknown."""
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


# numpy keeps up to 7 freed blocks of each size below 1024 bytes (numpy/_core/src/multiarray/alloc.c).
_NUMPY_CACHE_SIZES: Final = range(1, 1024)
_NUMPY_CACHE_DEPTH: Final = 7


def _fill_numpy_cache() -> None:
    """Fill numpy's cache of freed blocks if numpy is loaded.

    This takes 4 ms, and once 3.5 MB. A program with small arrays of ever new sizes (figures, masks of tables) fills the
    cache over thousands of iterations, by hundreds of bytes per iteration. The cache belongs to the process, not to a
    thread.
    """
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return
    for size in _NUMPY_CACHE_SIZES:
        blocks = [numpy.empty(size, "u1") for _ in range(_NUMPY_CACHE_DEPTH)]
        del blocks


def is_quiet() -> bool:
    """Return whether malloc counts a freed block as free at once.

    It does so if threads have no cache of freed blocks. The environment switches this cache off
    (`runner.processes.supervisor`). This function measures the effect, because the environment does not show whether
    the C library knows and applies the setting.
    """
    heap = Heap()
    try:
        heap.open()
    except Unavailable:
        return False
    libc = _libc()
    before = heap.read()
    # Allocate one block more than a cache holds, all of the cache's largest size. With a cache, either some blocks
    # come from it, or some go into it when they are freed.
    blocks = [libc.malloc(_TCACHE_SIZES[-1]) for _ in range(_TCACHE_DEPTH + 1)]
    held = heap.read() - before
    for block in blocks:
        libc.free(block)
    return held >= _TCACHE_SIZES[-1] * len(blocks) and heap.read() == before


class Heap:
    """``heap``: bytes in use in all arenas plus mapped chunks (``mallinfo2``).

    Resolution: one chunk (32 bytes for ``malloc(8)``). Noise: a freed chunk in a thread's cache still counts as used.
    Therefore `open` fills the cache of the measuring thread, so that this cache cannot grow. Cost: 0.3 to 3 us; the
    call walks the free lists, so a heap with 10,000 holes takes 0.5 ms. Scope: this process. Not counted: small Python
    objects (they are in pymalloc's own arenas), pools that map their own memory, and memory that a program maps with
    mmap.

    If another malloc is loaded before glibc's (jemalloc or tcmalloc, by LD_PRELOAD), ``mallinfo2`` exists but counts
    nothing. `open` detects this and makes the instrument unavailable.

    Fallback: ``psutil.heap_info`` if libc has no ``mallinfo2`` (macOS, Windows, glibc before 2.33); without either
    (musl) the instrument is unavailable.
    """

    resource = "heap"

    def open(self) -> None:
        try:
            # PyDLL keeps the GIL, so no other thread runs in the middle of a reading.
            function = ctypes.PyDLL(None).mallinfo2
        except (AttributeError, OSError, TypeError):
            self._read = _psutil_heap()
            if sys.platform.startswith("linux") and not _counts_malloc(self._read):
                raise _foreign_malloc_error() from None
            return
        function.restype = _Mallinfo2
        function.argtypes = []

        def read() -> int:
            info = function()
            return int(info.uordblks + info.hblkhd)

        if not _counts_malloc(read):
            raise _foreign_malloc_error()
        self._read = read
        # Fill the thread's cache last, because filling numpy's cache takes blocks from it.
        _fill_numpy_cache()
        _fill_thread_cache()

    def read(self) -> int:
        return self._read()

    def close(self) -> None:
        """Do nothing."""


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
