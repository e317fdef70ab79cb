"""Pass records from forked child processes to this process, through anonymous shared memory.

The memory is created before the children are forked, so they inherit it. It takes no descriptor and no file, and a
child that dies leaves its records behind. Each traced child has a slot to itself, so no lock is needed.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from typing import Any, Final

# The maximum number of children that are traced at the same time.
SLOTS: Final = 32
_SLOT_BYTES: Final = 1 << 16
_CELL_BYTES: Final = 8
# Cells of the header: the number of the round, then the process of each slot. 0 if there is none.
_HEADER_CELLS: Final = 1 + SLOTS
# Cells at the beginning of a slot: the number of bytes that its records take, and whether another record did not fit.
_SLOT_CELLS: Final = 2


class SharedLog:
    """The shared memory. Memory that no child has written takes no pages."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _HEADER_CELLS * _CELL_BYTES + SLOTS * _SLOT_BYTES)
        # A cell is written in one step, so that no other process sees half of a number.
        self._cells = memoryview(self._memory).cast("q")
        self._rounds = 0

    @property
    def round(self) -> int:
        """The number of the round in which children are traced; 0 if none is under way."""
        return self._cells[0]

    def begin_round(self) -> None:
        """Empty all slots, and begin to trace."""
        for slot in range(SLOTS):
            # A slot without a process has never been written. Even reading it would take a page.
            if self._cells[1 + slot]:
                self._cells[1 + slot] = self._cells[_first_cell(slot)] = self._cells[_first_cell(slot) + 1] = 0
        self._rounds += 1
        self._cells[0] = self._rounds

    def end_round(self) -> None:
        """Have all children stop tracing."""
        self._cells[0] = 0

    def assign(self, pid: int) -> bool:
        """Give a slot to a child, and return whether one was free."""
        free = next((slot for slot in range(SLOTS) if not self._cells[1 + slot]), None)
        if free is not None:
            self._cells[1 + free] = pid
        return free is not None

    def records(self, pid: int) -> Iterator[list[Any]]:
        """Yield what a child has written in the last round, up to the first record that cannot be read."""
        slot = self._slot_of(pid)
        if slot is None:
            return
        first = self._first_byte(slot)
        lines = bytes(self._memory[first : first + self._cells[_first_cell(slot)]]).splitlines()
        for line in lines:
            try:
                number, *record = json.loads(line)
            except ValueError:
                return
            if number == self._rounds:
                yield record

    def is_full(self, pid: int) -> bool:
        """Return whether a child had more to write than fits into its slot."""
        slot = self._slot_of(pid)
        return slot is not None and self._cells[_first_cell(slot) + 1] != 0

    def writer(self) -> Writer | None:
        """Return the access to the slot of the current process; None if it has none in this round."""
        slot = self._slot_of(os.getpid()) if self.round else None
        return None if slot is None else Writer(self, slot)

    def append(self, slot: int, record: bytes) -> None:
        used = self._cells[_first_cell(slot)]
        if _SLOT_CELLS * _CELL_BYTES + used + len(record) > _SLOT_BYTES:
            self._cells[_first_cell(slot) + 1] = 1
            return
        first = self._first_byte(slot) + used
        self._memory[first : first + len(record)] = record
        # The record comes first, because the number of bytes makes it visible.
        self._cells[_first_cell(slot)] = used + len(record)

    def _slot_of(self, pid: int) -> int | None:
        return next((slot for slot in range(SLOTS) if self._cells[1 + slot] == pid), None)

    def _first_byte(self, slot: int) -> int:
        return (_first_cell(slot) + _SLOT_CELLS) * _CELL_BYTES


def _first_cell(slot: int) -> int:
    return _HEADER_CELLS + slot * (_SLOT_BYTES // _CELL_BYTES)


class Writer:
    """A child's access to its slot."""

    def __init__(self, log: SharedLog, slot: int) -> None:
        self._log, self._slot = log, slot
        self._round, self._pid = log.round, os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the round is still under way, and this process is the one that has the slot."""
        return self._log.round == self._round and os.getpid() == self._pid

    def write(self, *record: object) -> None:
        if self.is_current:
            self._log.append(self._slot, json.dumps([self._round, *record]).encode() + b"\n")
