"""Count the bytes that native code has allocated with malloc and not freed."""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import isfinite
from typing import Any, Final

from pytest_leakcheck.probes.base import Stateless, Unavailable
from pytest_leakcheck.probes.memory import first_arena_bytes, read_mappings


# jemalloc and tcmalloc take malloc's place by LD_PRELOAD, or linked into Python. A library may also
# bring its own jemalloc, which malloc does not use, so a reading counts only after a check against
# a planted change. mimalloc only reports pages (`mi_process_info`), and counts blocks only in debug
# builds.
def open_readings() -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the name of each loaded allocator, and the reader of its bytes in use.

    These are jemalloc (12 us per reading) and tcmalloc (4 us).
    """
    library = ctypes.PyDLL(None)
    for name, opener in (("jemalloc", _open_jemalloc), ("tcmalloc", _open_tcmalloc)):
        try:
            yield name, opener(library)
        except (AttributeError, Unavailable):
            # This process does not have these functions.
            continue


def _open_jemalloc(library: ctypes.PyDLL) -> Callable[[], int]:
    """Return the reader of ``stats.allocated``; `Unavailable` if jemalloc has no statistics."""
    # It first flushes this thread's cache, which would count, and advances the epoch, which copies
    # the statistics.
    call = library.mallctl
    call.argtypes = [
        ctypes.c_char_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_size_t,
    ]
    call.restype = ctypes.c_int
    epoch, value, size = (
        ctypes.c_uint64(1),
        ctypes.c_size_t(),
        ctypes.c_size_t(ctypes.sizeof(ctypes.c_size_t)),
    )
    # Made once: a new reference would be an object that the harness allocates.
    to_epoch, to_value, to_size = ctypes.byref(epoch), ctypes.byref(value), ctypes.byref(size)

    def read() -> int:
        # An error if the cache is switched off; then there is nothing to flush.
        call(b"thread.tcache.flush", None, None, None, 0)
        failed = call(b"epoch", None, None, to_epoch, 8) or call(
            b"stats.allocated", to_value, to_size, None, 0
        )
        if failed:
            raise Unavailable(f"jemalloc has no statistics (mallctl: error {failed})")
        return value.value

    read()
    return read


def _open_tcmalloc(library: ctypes.PyDLL) -> Callable[[], int]:
    """Return the reader of ``generic.current_allocated_bytes``, without caches of freed blocks."""
    call = library.MallocExtension_GetNumericProperty
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    call.restype = ctypes.c_int
    value = ctypes.c_size_t()
    to_value = ctypes.byref(value)

    def read() -> int:
        if not call(b"generic.current_allocated_bytes", to_value):
            raise Unavailable("tcmalloc does not know generic.current_allocated_bytes")
        return value.value

    read()
    return read


class _Mallinfo2(ctypes.Structure):
    # The fields in the order of glibc's malloc.h; all are size_t.
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


# glibc keeps freed blocks of each of 64 sizes (in bytes) per thread, and counts them as in use
# (malloc/malloc.c, tcache): up to 7 of a size, and 16 from 2.43 on.
_TCACHE_SIZES: Final = tuple(range(24, 1033, 16))
# More blocks than a cache keeps of one size.
_MANY_BLOCKS: Final = 64
# Seconds. If an iteration takes at least this long, the cache is filled for each reading.
_MIN_SECONDS_TO_FILL: Final = 0.003
_MOST_FILLS: Final = 8


@cache
def _libc() -> ctypes.PyDLL:
    """Return the C library by `ctypes.PyDLL`, which keeps the GIL."""
    # No other Python thread runs in a call.
    libc = ctypes.PyDLL(None)
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.free.restype = None
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


def _count_kept(read: Callable[[], int], release: Callable[[int], object]) -> int:
    """Return how many of many released blocks of a size still count, as the median of three."""
    malloc, size = _libc().malloc, _TCACHE_SIZES[-1]
    # In an array, because a list of so many would be a block of malloc as well.
    blocks = array("Q", bytes(8 * _MANY_BLOCKS))
    kept = array("q")
    # Other threads may disturb one of the three.
    for _ in range(3):
        for at in range(_MANY_BLOCKS):
            blocks[at] = malloc(size)
        before = read()
        for block in blocks:
            release(block)
        kept.append(max(0, _MANY_BLOCKS - (before - read()) // size))
    return sorted(kept)[1]


def _free_by_realloc(block: int) -> None:
    """Move a block to where it is too large for the cache, and free it there."""
    libc = _libc()
    libc.free(libc.realloc(block, 4 * _TCACHE_SIZES[-1]))


class _ThreadCache:
    """This thread's cache of freed blocks, which count as in use.

    Where it is filled for each reading, it counts with the same amount each time. Freed blocks of
    mixed sizes fill it up to 230 KB, like a leak of 300 bytes in each of hundreds of iterations. To
    fill it once would not do: malloc may serve a request by a free block of the next size, which
    then goes into that size's part of the cache. So the own part is one short after each retained
    block, and up to 7 of these do not show. Nor can it be emptied for a reading: a request that
    finds it empty also takes the free blocks of that size along (malloc.c, stashing). Between two
    readings, `_blocks` are taken out of the full cache, so they have exactly its sizes.

    `is_bypassed`: realloc frees a block past the cache, from which malloc took it (glibc 2.43). So
    each list that grows takes one out, which comes back among many: a sawtooth, wherever the cache
    is not filled for each reading.
    """

    def __init__(self, libc: Any, read: Callable[[], int]) -> None:
        self._malloc, self._free = libc.malloc, libc.free
        depth = _count_kept(read, libc.free)
        self.is_bypassed = _count_kept(read, _free_by_realloc) < depth
        # In an array, because a list of addresses would be blocks and objects that the harness
        # allocates.
        self._sizes = array("q", _TCACHE_SIZES * depth)
        self._blocks = array("Q", bytes(8 * len(self._sizes)))
        self._taken = False

    def take(self) -> None:
        """Allocate as many blocks as the cache can hold.

        With `fill`, this takes 0.15 ms for 7 blocks of each size.
        """
        if self._taken:
            return
        self._taken = True
        malloc, blocks = self._malloc, self._blocks
        for at, size in enumerate(self._sizes):
            blocks[at] = malloc(size)

    def fill(self) -> None:
        """Free the blocks that `take` has allocated; at the first time, it allocates them."""
        self.take()
        self._taken = False
        free, blocks = self._free, self._blocks
        for at, block in enumerate(blocks):
            # An interrupt may end the next `take` halfway: what it leaves must not be freed again.
            blocks[at] = 0
            free(block)


def _open_glibc(libc: Any) -> Callable[[], int]:
    function = libc.mallinfo2
    function.restype = _Mallinfo2
    function.argtypes = []

    def read() -> int:
        info = function()
        return int(info.uordblks + info.hblkhd)

    return read


@cache
def _open_thread_cache(libc: Any) -> _ThreadCache:
    """Measure the cache, once per process, because that takes 0.25 ms."""
    return _ThreadCache(libc, _open_glibc(libc))


@contextmanager
def drained_thread_cache() -> Iterator[None]:
    """Keep this thread's cache empty, so that the counter rises with each block."""
    cache = heap.cache if (heap := _open_heap()) is not None else None
    if cache is None:
        yield
        return
    cache.take()
    try:
        yield
    finally:
        cache.fill()


# The bytes of a test block: large enough not to be rounded away, and small enough not to be mapped
# separately.
_TEST_BLOCK_BYTES: Final = 1 << 16
# The number of blocks in each try. A cache of freed blocks holds fewer than 32.
_TEST_BLOCK_COUNTS: Final = (1, 1, 32)


def _counts_malloc(read: Callable[[], int]) -> bool:
    """Return whether a reading rises with malloc."""
    try:
        libc = _libc()
    except (AttributeError, OSError):
        # There is no malloc to try.
        return True
    # Several times, because another thread that frees may hide a rise.
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
    # In a Python without libpython, such as Debian's, the address of `malloc` is one of the
    # program, which calls through it: so the libraries that are loaded before glibc are asked
    # first.
    preloaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    paths = (_path_of_malloc(name) for name in (*preloaded, None))
    library = next((os.path.basename(path) for path in paths if path), "an unknown library")
    return Unavailable(
        f"malloc is not glibc's: it is from {library}, whose bytes glibc does not count; start Python without it "
        "(LD_PRELOAD?), or use rss_budget"
    )


def _path_of_malloc(name: str | None) -> str:
    """Return the file of a library's or this process's own `malloc`; empty if there is none."""
    try:
        address = ctypes.cast(ctypes.PyDLL(name).malloc, ctypes.c_void_p).value or 0
    except (AttributeError, OSError):
        return ""
    path = next((one.path for one in read_mappings() if one.start <= address < one.end), "")
    return (
        path
        if name is None or os.path.basename(path) == os.path.basename(os.path.realpath(name))
        else ""
    )


# numpy keeps up to 7 freed blocks of each size below 1024 bytes
# (numpy/_core/src/multiarray/alloc.c).
_NUMPY_CACHE_SIZES: Final = range(1, 1024)
_NUMPY_CACHE_DEPTH: Final = 7
_FILLED: Final[set[Any]] = set()


def _fill_numpy_cache(numpy: Any) -> None:
    """Fill numpy's cache of freed blocks, one per process, if numpy is loaded."""
    # This takes 4 ms, and once 3.5 MB. Small arrays of ever new sizes (figures, masks) fill it over
    # thousands of iterations, by hundreds of bytes each.
    if numpy is None:
        return
    for size in _NUMPY_CACHE_SIZES:
        blocks = [numpy.empty(size, "u1") for _ in range(_NUMPY_CACHE_DEPTH)]
        del blocks


def other_allocator() -> str:
    """Return the allocator whose own statistics `Heap` reads; empty if it reads the C library's."""
    heap = _open_heap()
    return heap.allocator if heap is not None else ""


def _open_heap() -> Heap | None:
    heap = Heap()
    with suppress(Unavailable):
        heap.open()
        return heap
    return None


def is_quiet() -> bool:
    """Return whether malloc counts a freed block as free at once.

    This is measured, because malloc may not apply the settings.
    """
    return _open_heap() is not None and not thread_cache_bytes()


def thread_cache_bytes() -> int:
    """Return the most bytes of freed blocks that malloc keeps per thread and counts as in use."""
    # On Windows, `ctypes` does not find the malloc of this process.
    heap = _open_heap() if sys.platform != "win32" else None
    return sum(_TCACHE_SIZES) * _count_kept(heap.read, _libc().free) if heap is not None else 0


class Heap(Stateless):
    """``heap``: bytes in use in all arenas plus mapped chunks (``mallinfo2``).

    Resolution: one chunk (32 bytes for ``malloc(8)``). Noise: a freed chunk in a thread's cache
    still counts as used (`_ThreadCache`). Cost: 0.3 to 3 us, and 0.15 ms where that cache is filled
    (0.35 ms with glibc 2.43, where each reading does so); 0.5 ms with 10,000 holes in the heap,
    because the call walks the free lists. Scope: this process. Not counted: small Python objects
    (in pymalloc's arenas), pools that map their own memory, and memory that a program maps with
    mmap. Fallback: ``psutil.heap_info`` if libc has no ``mallinfo2`` (macOS, Windows, glibc before
    2.33); unavailable without either (musl). If another malloc is loaded before glibc's
    (LD_PRELOAD), jemalloc and tcmalloc are read by their own statistics (`open_readings`):
    resolution one size class; blocks in caches of other threads count with jemalloc, never with
    tcmalloc. Any other is unavailable.
    """

    resource = "heap"

    def __init__(self) -> None:
        # None if the C library is not glibc.
        self.cache: _ThreadCache | None = None
        self._fills_each_time = False
        # What was resident of the first arena at the start, at least; negative until that is read.
        self._resident = -1
        # The allocator whose own statistics are read, in place of the C library's.
        self.allocator = ""

    def open(self) -> None:
        try:
            read = _open_glibc(libc := _libc())
        except (AttributeError, OSError, TypeError):
            self._read = _psutil_heap()
            if sys.platform.startswith("linux") and not _counts_malloc(self._read):
                self._read_other_malloc()
            return
        if not _counts_malloc(read):
            self._read_other_malloc()
            return
        self._read = read
        self.cache = _open_thread_cache(libc)

    def _read_other_malloc(self) -> None:
        """Use the statistics of glibc's replacement; raise `Unavailable` if they count nothing."""
        for name, read in open_readings():
            if _counts_malloc(read):
                self.allocator, self._read = name, read
                return
        raise _foreign_malloc_error()

    def read(self) -> int:
        return self._read()

    def idle(self, risen: int) -> tuple[int, int] | None:
        """Return how many bytes may have been unused at the start: in arenas, and in large blocks.

        Large blocks have mappings of their own. `risen` is how much resident memory there is since
        then. None if the malloc is not glibc's.
        """
        if self.cache is None:
            return None
        if self._resident < 0:
            # All of it may be in the first arena so far.
            self._resident = max(0, first_arena_bytes() - risen)
        info = _libc().mallinfo2()
        return max(0, info.arena - self._resident), int(info.hblkhd)

    def start(self, seconds: float) -> None:
        """Fill the caches of freed blocks.

        What the warm-up took would come back over hundreds of iterations. In a screen (`seconds` is
        infinite), that of numpy is filled only if no series of this process has done so.
        """
        numpy = sys.modules.get("numpy")
        if isfinite(seconds) or numpy not in _FILLED:
            _fill_numpy_cache(numpy)
            _FILLED.add(numpy)
        self._resident = -1
        if self.cache is not None:
            self._fills_each_time = seconds >= _MIN_SECONDS_TO_FILL or self.cache.is_bypassed
            # Also where each reading does so: blocks that malloc has ready would otherwise add up
            # to 1 KB to the first.
            self.cache.fill()
            # Of the blocks that are allocated first, some may be larger than requested, and of
            # other parts of the cache.
            for _ in range(_MOST_FILLS):
                before = self._read()
                self.cache.fill()
                if self._read() == before:
                    break

    def read_in_series(self) -> int:
        if self._fills_each_time and self.cache is not None:
            self.cache.fill()
            value = self._read()
            self.cache.take()
            return value
        return self._read()

    def close(self) -> None:
        if self.cache is not None:
            self.cache.fill()


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
