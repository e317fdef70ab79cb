"""Find malloc's large blocks, and how much of their memory the program has touched, so that it is resident.

Resident memory rises as a program fills a buffer that it has allocated once. glibc maps large blocks directly, those of
32 MiB and more always, and puts a header before each, which this module reads.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pytest_leakcheck.probes.memory import PAGE

# glibc, malloc/malloc.c: a chunk begins with its offset from the start of the mapping and its size, whose three lowest
# bits are flags. In a chunk that is mapped directly, only the flag `_MAPPED_DIRECTLY` is set.
_HEADER: Final = struct.Struct("@NN")
_FLAGS: Final = 7
_MAPPED_DIRECTLY: Final = 2
# An aligned block (64 bytes in torch) has its header fewer than this many bytes after the start of the mapping.
_MAX_OFFSET: Final = 128
# The minimum size, in bytes, of the blocks and mappings that are examined.
_MIN_BYTES: Final = 1 << 20
# The most pages of a mapping that are searched for a header. The header need not be on the first page, because the
# kernel may have merged other mappings with this one.
_MAX_PAGES_SEARCHED: Final = 4096


class _Mapping(NamedTuple):
    start: int
    end: int
    touched: int


def touched_large_blocks() -> dict[tuple[int, int], int]:
    """Return the touched bytes of malloc's large blocks, by start and end addresses; empty outside Linux.

    Adjacent blocks count as one. Cost: 1 us per mapping, and up to 5 ms for each large one without such a block.
    """
    mappings = _anonymous_mappings()
    found: dict[tuple[int, int], int] = {}
    for start, end in _large_blocks(mappings):
        around = [one for one in mappings if start <= one.start < end or start < one.end <= end]
        # The kernel counts touched bytes per mapping. If more than half of these mappings is outside the block, the
        # count does not describe the block.
        if sum(one.end - one.start for one in around) <= 2 * (end - start):
            found[start, end] = sum(one.touched for one in around)
    return found


def _anonymous_mappings() -> list[_Mapping]:
    """Return the mappings that are anonymous and writable, in order of address."""
    found = []
    start = end = 0
    try:
        with open("/proc/self/smaps", "rb") as file:
            for line in file:
                word, _, rest = line.partition(b" ")
                if not word.endswith(b":"):
                    start, end = _read_bounds(word, rest)
                elif word == b"Anonymous:" and end:
                    found.append(_Mapping(start, end, int(rest.split()[0]) * 1024))
    except OSError:
        return []
    return found


def _read_bounds(word: bytes, rest: bytes) -> tuple[int, int]:
    """Return the bounds of a mapping; zeros unless it is anonymous and writable."""
    fields = rest.split()
    if fields[0] != b"rw-p" or len(fields) > 4:
        return 0, 0
    first, _, last = word.partition(b"-")
    return int(first, 16), int(last, 16)


def _large_blocks(mappings: Sequence[_Mapping]) -> Iterator[tuple[int, int]]:
    """Yield the start and end addresses of large blocks; adjacent blocks count as one."""
    for start, end in _without_gaps(mappings):
        page, searched = start, 0
        while page < end and searched < _MAX_PAGES_SEARCHED:
            first = page
            while page < end and (size := _read_block_size(page, end)):
                page += size
            if page > first:
                yield first, page
            page += PAGE
            searched += 1


def _without_gaps(mappings: Sequence[_Mapping]) -> Iterator[tuple[int, int]]:
    start = end = 0
    for one in mappings:
        if one.start != end:
            if end - start >= _MIN_BYTES:
                yield start, end
            start = one.start
        end = one.end
    if end - start >= _MIN_BYTES:
        yield start, end


def _read_block_size(page: int, end: int) -> int:
    """Return the bytes of the large block that begins with this page, or 0; reading makes no page resident."""
    text = ctypes.string_at(page, _MAX_OFFSET + _HEADER.size)
    for offset in range(0, _MAX_OFFSET, 16):
        before, head = _HEADER.unpack_from(text, offset)
        size = offset + (head & ~_FLAGS)
        mapped_directly = head & _FLAGS == _MAPPED_DIRECTLY and before == offset
        if mapped_directly and _MIN_BYTES <= size <= end - page and size % PAGE == 0:
            return int(size)
    return 0
