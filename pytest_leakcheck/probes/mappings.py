"""Read the memory mappings of a process from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_LINE: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) *(.*)$", re.MULTILINE)


class MemoryMapping(NamedTuple):
    """One mapping, from address `start` up to `end`.

    `rights` are letters as in ``rw-p``; `inode` is 0 without a file. `path` may also be a label such as ``[heap]``.
    """

    start: int
    end: int
    rights: bytes
    inode: int
    path: str

    @property
    def is_memory(self) -> bool:
        """Whether it is memory without a file, and not a special one such as the heap or the stack."""
        return not self.inode and (not self.path or self.path.startswith("[anon"))


def read_mappings(process: str = "self", containing: bytes = b"") -> Iterator[MemoryMapping]:
    """Yield the mappings in order of address; none if they cannot be read, or do not contain a text."""
    try:
        with open(f"/proc/{process}/maps", "rb") as file:
            maps = file.read()
    except OSError:
        return
    # Hardly any process maps a file of a given folder, and some have thousands of mappings.
    if containing in maps:
        yield from parse_mappings(maps)


def parse_mappings(maps: bytes) -> Iterator[MemoryMapping]:
    """Yield the mappings that a text of the form of ``/proc/PID/maps`` lists."""
    for match in _LINE.finditer(maps):
        start, end, rights, inode, path = match.groups()
        yield MemoryMapping(int(start, 16), int(end, 16), rights, int(inode), os.fsdecode(path) if path else "")
