"""Memory that becomes resident while no allocator hands anything out."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final

import numpy as np

from cases import clib
from cases.case import Case, drain, kept, leak

PIECE: Final = 2 << 20
PIECES: Final = 512
MIB: Final = 1 << 20
ADDRESSES = clib.addresses()


class Arena:
    """Address space that an allocator of its own has reserved, and gives out in pieces."""

    address: int
    pieces: Iterator[int]

    @classmethod
    def reserve(cls) -> None:
        cls.address = clib.map_pages(PIECE * PIECES)
        cls.pieces = itertools.cycle(range(PIECES))

    @classmethod
    def unmap(cls) -> None:
        clib.munmap(cls.address, PIECE * PIECES)


class Ring:
    """A buffer that is allocated whole, and written row by row."""

    rows: Any
    turn: Iterator[int]

    @classmethod
    def allocate(cls) -> None:
        cls.rows = np.zeros((PIECES, PIECE), np.uint8)
        cls.turn = itertools.cycle(range(PIECES))

    @classmethod
    def drop(cls) -> None:
        cls.rows = None


class SharedRing:
    """As `Ring`, in memory that child processes would share."""

    rows: mmap.mmap
    turn: Iterator[int]

    @classmethod
    def map(cls) -> None:
        cls.rows = mmap.mmap(-1, PIECE * PIECES)
        cls.turn = itertools.cycle(range(PIECES))

    @classmethod
    def unmap(cls) -> None:
        cls.rows.close()


class Slots:
    """Blocks below malloc's limit for mappings of their own, which it takes from its arenas before they are written."""

    SIZE: Final = 100 << 10
    AT_ONCE: Final = 5
    at: int

    @classmethod
    def allocate(cls) -> None:
        ADDRESSES.extend(clib.malloc(cls.SIZE) for _ in range(512 * cls.AT_ONCE))
        cls.at = 0

    @classmethod
    def write(cls) -> None:
        for _ in range(cls.AT_ONCE):
            ctypes.memset(ADDRESSES[cls.at], 1, cls.SIZE)
            cls.at = (cls.at + 1) % len(ADDRESSES)


class Pool:
    """An allocator that maps arenas, each of twice the size of the one before, up to a total, and begins again."""

    FIRST: Final = MIB
    LAST: Final = 4 * MIB
    PIECE: Final = MIB // 2
    arenas: dict[int, int]
    at: int

    @classmethod
    def empty(cls) -> None:
        cls.arenas, cls.at = {}, 0

    @classmethod
    def give(cls) -> None:
        start, size = 0, cls.FIRST
        while cls.at >= start + size and size < cls.LAST:
            start, size = start + size, 2 * size
        if cls.at >= start + size:
            start, size, cls.at = 0, cls.FIRST, 0
        if size not in cls.arenas:
            cls.arenas[size] = clib.map_pages(size)
        ctypes.memset(cls.arenas[size] + cls.at - start, 1, cls.PIECE)
        cls.at += cls.PIECE

    @classmethod
    def unmap(cls) -> None:
        for size, address in cls.arenas.items():
            clib.munmap(address, size)


class Tapering:
    """An arena of which each call takes less than the one before, and in the end nothing."""

    CALLS: Final = 30

    @classmethod
    def write(cls) -> None:
        left = cls.CALLS - next(Arena.pieces)
        if left > 0:
            # The start of this piece is past the end of the one before.
            at = PIECE * (cls.CALLS - left)
            ctypes.memset(Arena.address + at, 1, PIECE * left // cls.CALLS)


class Churn:
    """Blocks of all sizes below malloc's limit for mappings, of which one in two is replaced in each call."""

    dice: random.Random

    @classmethod
    def seed(cls) -> None:
        cls.dice = random.Random(7)

    @classmethod
    def allocate(cls) -> None:
        cls.seed()
        ADDRESSES.extend(cls.new() for _ in range(400))

    @classmethod
    def new(cls) -> int:
        size = cls.dice.randrange(1_000, 120_000)
        address = clib.malloc(size)
        ctypes.memset(address, 1, size)
        return int(address)

    @classmethod
    def replace(cls) -> None:
        for at in cls.dice.sample(range(len(ADDRESSES)), len(ADDRESSES) // 2):
            clib.free(ADDRESSES[at])
            ADDRESSES[at] = cls.new()


class Threads:
    """Threads that stay, each of which takes memory for a moment in an arena of its own when its turn comes."""

    COUNT: Final = 6
    works: list[SimpleQueue[bool]]
    done: SimpleQueue[bool]
    threads: list[Thread]
    turn: Iterator[int]

    @classmethod
    def start(cls) -> None:
        cls.works = [SimpleQueue() for _ in range(cls.COUNT)]
        cls.done = SimpleQueue()
        cls.threads = [Thread(target=cls.work, args=(queue,)) for queue in cls.works]
        cls.turn = itertools.cycle(range(cls.COUNT))
        for thread in cls.threads:
            thread.start()

    @classmethod
    def work(cls, queue: SimpleQueue[bool]) -> None:
        while queue.get():
            blocks = [clib.malloc(Slots.SIZE) for _ in range(40)]
            for block in blocks:
                ctypes.memset(block, 1, Slots.SIZE)
                clib.free(block)
            del blocks
            cls.done.put(True)

    @classmethod
    def next_one(cls) -> None:
        cls.works[next(cls.turn)].put(True)
        cls.done.get()

    @classmethod
    def end(cls) -> None:
        for queue in cls.works:
            queue.put(False)
        for thread in cls.threads:
            thread.join()


def next_row_of_shared_ring() -> None:
    SharedRing.rows.seek(PIECE * next(SharedRing.turn))
    SharedRing.rows.write(bytes(PIECE))


def written_pages() -> None:
    address = clib.map_pages(MIB)
    ctypes.memset(address, 1, MIB)
    ADDRESSES.append(address)


def written_pages_unmapped() -> None:
    address = clib.map_pages(8 * MIB)
    ctypes.memset(address, 1, 8 * MIB)
    clib.munmap(address, 8 * MIB)


def arrays_of_all_sizes() -> None:
    for size in Churn.dice.sample(range(1_000, 4_000_000), 4):
        np.ones(size, np.uint8).sum()


def next_piece_of_arena() -> None:
    ctypes.memset(Arena.address + PIECE * next(Arena.pieces), 1, PIECE)


def same_piece_of_arena() -> None:
    ctypes.memset(Arena.address, 1, PIECE)


def next_row_of_ring() -> None:
    Ring.rows[next(Ring.turn)] = 1


_FIRST_WRITES: Final = "each call writes pages for the first time, up to the size of the buffer"
CASES = (
    leak("arena_grows", "rss", next_piece_of_arena, same_piece_of_arena, Arena.unmap,
         setup=Arena.reserve, line="ctypes.memset(Arena.address + PIECE"),
    kept("written_pages_in_c", "mmap rss", written_pages, drain(ADDRESSES, lambda address: clib.munmap(address, MIB)),
         line=("_mmap(None", "clib.map_pages(MIB)"), owner=".ADDRESSES"),
    Case(
        "ring_is_written",
        clean=next_row_of_ring,
        setup=Ring.allocate,
        teardown=Ring.drop,
        doubt=_FIRST_WRITES,
    ),
    Case(
        "shared_ring_is_written",
        clean=next_row_of_shared_ring,
        setup=SharedRing.map,
        teardown=SharedRing.unmap,
        doubt=_FIRST_WRITES,
    ),
    Case(
        "slots_are_written",
        clean=Slots.write,
        setup=Slots.allocate,
        teardown=drain(ADDRESSES, clib.free),
        doubt=_FIRST_WRITES,
    ),
    Case("pool_doubles", clean=Pool.give, setup=Pool.empty, teardown=Pool.unmap, settles_after=14),
    Case("arena_tapers", clean=Tapering.write, setup=Arena.reserve, teardown=Arena.unmap, settles_after=30),
    Case("heap_fragments", clean=Churn.replace, setup=Churn.allocate, teardown=drain(ADDRESSES, clib.free),
         doubt="the sum of the sizes varies"),
    Case("arenas_of_threads", clean=Threads.next_one, setup=Threads.start, teardown=Threads.end, settles_after=6),
    Case("mappings_reused", clean=written_pages_unmapped),
    Case("arrays_of_all_sizes", clean=arrays_of_all_sizes, setup=Churn.seed),
)  # fmt: skip
