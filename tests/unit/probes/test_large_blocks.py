"""Malloc's large blocks are found by their headers, and nothing else is taken for one."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_leakcheck.probes.large_blocks import touched_large_blocks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MIB = 1 << 20
# Larger than any block that glibc takes from an arena.
SIZE = 48 * MIB


@pytest.fixture
def libc() -> Any:
    library = ctypes.CDLL(None)
    library.calloc.restype = library.aligned_alloc.restype = ctypes.c_void_p
    library.calloc.argtypes = library.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


@pytest.fixture(params=["calloc", "aligned_alloc"])
def block(libc: Any, request: pytest.FixtureRequest) -> Iterator[int]:
    address = libc.calloc(1, SIZE) if request.param == "calloc" else libc.aligned_alloc(64, SIZE)
    yield address
    libc.free(address)


def touched_at(address: int) -> int | None:
    """The touched bytes of the block that an address is in."""
    return next((touched for (start, end), touched in touched_large_blocks().items() if start <= address < end), None)


def test_a_block_is_found_with_what_of_it_is_touched(block: int) -> None:
    before = touched_at(block)
    assert before is not None
    ctypes.memset(block, 1, 8 * MIB)
    after = touched_at(block)
    assert after is not None
    # The kernel may make a huge page (2 MiB) resident at once.
    assert 6 * MIB <= after - before <= 10 * MIB


def test_a_block_is_gone_once_it_is_freed(libc: Any) -> None:
    block = libc.calloc(1, SIZE)
    ctypes.memset(block, 1, MIB)
    assert touched_at(block) is not None
    libc.free(block)
    assert touched_at(block) is None


def test_a_mapping_of_another_allocator_is_no_block() -> None:
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as arena:
        arena[: 8 * MIB] = bytes([255]) * (8 * MIB)
        inside = ctypes.c_char.from_buffer(arena)
        assert touched_at(ctypes.addressof(inside)) is None
        del inside


def test_reading_headers_makes_nothing_resident(block: int) -> None:
    touched_large_blocks()
    before = touched_at(block)
    for _ in range(3):
        touched_large_blocks()
    assert touched_at(block) == before


def test_without_proc_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_arguments: object) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr("pytest_leakcheck.probes.large_blocks.open", missing, raising=False)
    assert touched_large_blocks() == {}
