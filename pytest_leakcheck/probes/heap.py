"""Bytes that native code holds: what malloc handed out and did not get back."""

from __future__ import annotations

import ctypes
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
    libc = ctypes.PyDLL(None)
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


def is_quiet() -> bool:
    """Whether malloc counts a block as free as soon as it is freed: no thread's cache holds any (see `fresh`).

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
    held = heap.read()[0] - before[0]
    for block in blocks:
        libc.free(block)
    return held >= _SIZES[-1] * len(blocks) and heap.read() == before


class Heap:
    """``heap``: bytes in use in all arenas plus mapped chunks, from glibc's ``mallinfo2``.

    Resolution: one chunk (32 bytes for ``malloc(8)``). Noise: a chunk freed into a thread's cache still counts as used; the
    measuring thread's is filled beforehand.
    Cost: 0.3 to 3 us; it walks the free lists, so a heap with 10,000 holes takes 0.5 ms. Scope: this process.
    Does not see: small Python objects (they live in pymalloc's own arenas), pools that map their own memory, mmap.
    Fallback: none. Where libc has no ``mallinfo2`` (musl, macOS, Windows, glibc before 2.33) it is unavailable.
    """

    resources = ("heap",)

    def __init__(self) -> None:
        self._mallinfo2: Any = None

    def open(self) -> None:
        try:
            # PyDLL keeps the GIL: no hand-over to another thread in the middle of a reading.
            function = ctypes.PyDLL(None).mallinfo2
        except (AttributeError, OSError, TypeError):
            raise Unavailable(
                "the C library has no mallinfo2 (glibc 2.33 or newer has it); rss_budget needs none"
            ) from None
        function.restype = _Mallinfo2
        function.argtypes = []
        self._mallinfo2 = function
        _fill_thread_cache()

    def read(self) -> tuple[int, ...]:
        info = self._mallinfo2()
        return (info.uordblks + info.hblkhd,)

    def close(self) -> None:
        self._mallinfo2 = None
