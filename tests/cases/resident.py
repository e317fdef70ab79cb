"""Memory that becomes resident while no allocator hands anything out."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from cases import clib
from cases.case import Case, leak

PIECE: Final = 2 << 20
PIECES: Final = 512


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


def next_piece_of_arena() -> None:
    ctypes.memset(Arena.address + PIECE * next(Arena.pieces), 1, PIECE)


def same_piece_of_arena() -> None:
    ctypes.memset(Arena.address, 1, PIECE)


def next_row_of_ring() -> None:
    Ring.rows[next(Ring.turn)] = 1


CASES = (
    leak("arena_grows", "rss", next_piece_of_arena, same_piece_of_arena, Arena.unmap,
         setup=Arena.reserve, verdict="inconclusive"),
    Case(
        "ring_is_written",
        clean=next_row_of_ring,
        setup=Ring.allocate,
        teardown=Ring.drop,
        doubt="each call writes pages for the first time, up to the size of the buffer",
    ),
)  # fmt: skip
