"""Mapped memory that is never unmapped: it is in no heap, and often in no object."""

from __future__ import annotations

import mmap
import tempfile
from functools import partial
from typing import IO, Any

import numpy as np

from cases import clib
from cases.case import drain, kept, leak

PAGE = mmap.PAGESIZE
MAPS: list[mmap.mmap] = []
ARRAYS: list[Any] = []
ADDRESSES = clib.addresses()
ENDED = clib.addresses()


class Source:
    """A file of a few pages to map."""

    file: IO[bytes]

    @classmethod
    def make(cls) -> None:
        cls.file = tempfile.TemporaryFile()
        cls.file.truncate(8 * PAGE)

    @classmethod
    def remove(cls) -> None:
        drain(MAPS, mmap.mmap.close)()
        drain(ADDRESSES, partial(unmap, size=8 * PAGE))()
        ARRAYS.clear()
        cls.file.close()


def unmap(address: int, size: int) -> None:
    clib.munmap(address, size)


def object_kept() -> None:
    MAPS.append(mmap.mmap(-1, 16 * PAGE))


def file_mapped() -> None:
    MAPS.append(mmap.mmap(Source.file.fileno(), 0, access=mmap.ACCESS_READ))


def file_unmapped() -> None:
    with mmap.mmap(Source.file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        view.find(b"1")


def array_over_file() -> None:
    ARRAYS.append(np.memmap(Source.file, np.uint8, "r")[:10])


def array_copied_from_file() -> None:
    # The last one stays in reach, as it did before, and holds no more than ten bytes.
    ARRAYS[:] = [np.memmap(Source.file, np.uint8, "r")[:10].copy()]


def pages_in_c() -> None:
    ADDRESSES.append(clib.map_pages(64 * PAGE))


def file_in_c() -> None:
    ADDRESSES.append(clib.map_pages(8 * PAGE, Source.file.fileno()))


def file_in_c_unmapped() -> None:
    clib.munmap(clib.map_pages(8 * PAGE, Source.file.fileno()), 8 * PAGE)


def tail_forgotten() -> None:
    address = clib.map_pages(8 * PAGE)
    clib.munmap(address, 7 * PAGE)
    ADDRESSES.append(address + 7 * PAGE)


def tail_unmapped() -> None:
    address = clib.map_pages(8 * PAGE)
    clib.munmap(address, 8 * PAGE)


def stack_of_an_ended_thread() -> None:
    # Neither joined nor detached: the thread is gone and its stack is not.
    ENDED.append(clib.start_thread(clib.GETPID))


CASES = (
    kept("map_kept", "mmap object", object_kept, drain(MAPS, mmap.mmap.close),
         line="mmap.mmap(-1", owner=".MAPS"),
    leak("file_mapped", "fd", file_mapped, file_unmapped, Source.remove,
         setup=Source.make, line="mmap.mmap(Source.file.fileno()", owner=".MAPS"),
    leak("array_over_file", "fd", array_over_file, array_copied_from_file, Source.remove,
         setup=Source.make, line="np.memmap(", owner=".ARRAYS"),
    kept("pages_in_c", "mmap", pages_in_c, drain(ADDRESSES, partial(unmap, size=64 * PAGE)),
         line=("_mmap(None", "clib.map_pages(64 * PAGE)"), owner=".ADDRESSES"),
    leak("file_mapped_in_c", "mmap", file_in_c, file_in_c_unmapped, Source.remove,
         setup=Source.make, line=("_mmap(None", "clib.map_pages(8 * PAGE, Source"), owner=".ADDRESSES"),
    leak("tail_forgotten", "mmap", tail_forgotten, tail_unmapped, drain(ADDRESSES, partial(unmap, size=PAGE)),
         line=("_mmap(None", "clib.map_pages(8 * PAGE)"), owner=".ADDRESSES"),
    kept("stack_of_an_ended_thread", "mmap heap", stack_of_an_ended_thread,
         drain(ENDED, lambda handle: clib.pthread_join(handle, None)),
         line=("pthread_create(", "clib.start_thread(clib.GETPID)"), owner=".ENDED"),
)  # fmt: skip
