"""Leaks of a given size, in any resource that can be counted without a device."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import mmap
import os
import subprocess
import tempfile
import threading
from array import array
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from random import Random
from typing import Any, Final

# Entries of the tables of what is leaked. They have their full size from the start, so that they add nothing. A test has
# fewer iterations, and leaks at most two units in each.
_ENTRIES: Final = 20_000
# The memory that is mapped in advance, and touched in pieces.
_ARENA_BYTES: Final = 1 << 30
# Bytes leak in multiples of these, at least in one of this size. A block of n bytes of malloc takes n + 8 bytes, rounded
# up to a multiple of 16, and at least 32.
_GRAINS: Final = {"heap": (16, 32), "arrow": (64, 64), "mmap": (4096, 4096), "rss": (4096, 4096)}


class Planted:
    """A leak of `amount` units of a resource per iteration. Call it once per iteration; `release` ends it.

    What is less than a unit adds up. With `chance`, it decides instead when one more unit is leaked. Otherwise, the leak
    may strike in every `period`-th iteration only, by as much more.
    """

    def __init__(self, resource: str, amount: float, chance: Random | None = None, period: int = 1) -> None:
        self._leak: Callable[..., object] = getattr(self, f"_leak_{resource}")
        self._grain, self._least = _GRAINS.get(resource, (0, 0))
        self._amount, self._chance, self._period = amount, chance, period
        self._calls, self._due = 0, 0.0
        self._forget()
        self._libc: Any = ctypes.CDLL(None)
        self._libc.malloc.restype = self._libc.mmap.restype = ctypes.c_void_p
        self._libc.malloc.argtypes = [ctypes.c_size_t]
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        if resource == "task":
            self._loop = asyncio.new_event_loop()
        if resource == "rss":
            self._arena, self._touched = mmap.mmap(-1, _ARENA_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), 0

    def _forget(self) -> None:
        self._kept: list[Any] = [None] * _ENTRIES
        self._numbers = array("Q", bytes(8 * _ENTRIES))
        self._free = itertools.count()
        self._ended = threading.Event()

    def __call__(self) -> None:
        self._calls += 1
        if self._calls % self._period:
            return
        if self._chance is not None and not self._grain:
            whole = int(self._amount)
            due = whole + (self._chance.random() < self._amount - whole)
        else:
            self._due += self._amount * self._period
            due = int(self._due)
            if self._grain:
                due = max(self._least, due // self._grain * self._grain)
            if self._due < due:
                return
            self._due -= due
        if self._grain:
            self._leak(due)
            return
        for _ in range(due):
            self._leak()

    def _keep(self, one: object) -> None:
        self._kept[next(self._free)] = one

    def _leak_fd(self) -> None:
        self._numbers[next(self._free)] = os.open(os.devnull, os.O_RDONLY)

    def _leak_cycle(self) -> None:
        """A descriptor that only the garbage collector closes."""
        cycle: list[Any] = [open(os.devnull)]  # noqa: PTH123, SIM115 - this is the leak
        cycle.append(cycle)

    def _leak_thread(self) -> None:
        threading.Thread(target=self._ended.wait, daemon=True).start()

    def _leak_process(self) -> None:
        self._keep(subprocess.Popen(["sleep", "3600"]))

    def _leak_shm(self) -> None:
        segment = SharedMemory(create=True, size=16)
        resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
        segment.close()
        self._keep(segment.name)

    def _leak_disk(self) -> None:
        descriptor, path = tempfile.mkstemp()
        os.close(descriptor)
        self._keep(path)

    def _leak_task(self) -> None:
        self._keep(self._loop.create_task(asyncio.Event().wait()))
        self._loop.run_until_complete(asyncio.sleep(0))

    def _leak_object(self) -> None:
        self._keep([])

    def _leak_block(self) -> None:
        self._keep(b"%d" % self._calls * 10)

    def _leak_heap(self, size: int) -> None:
        self._numbers[next(self._free)] = self._libc.malloc(size - 8)

    def _leak_arrow(self, size: int) -> None:
        import pyarrow as pa

        if self._kept[0] is None:
            self._kept[0] = pa.allocate_buffer(0, resizable=True)
        self._kept[0].resize(self._kept[0].size + size)

    def _leak_mmap(self, size: int) -> None:
        self._libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

    def _leak_rss(self, size: int) -> None:
        for at in range(self._touched, self._touched + size, mmap.PAGESIZE):
            self._arena[at] = 1
        self._touched += size

    def release(self) -> None:
        """Release what was leaked so far, without what only the end of the process releases."""
        self._ended.set()
        give_back = self._libc.free if self._grain else os.close
        for number in filter(None, self._numbers):
            give_back(number)
        for one in self._kept:
            if isinstance(one, subprocess.Popen):
                one.kill()
                one.wait()
            elif isinstance(one, str):
                folder = "/dev/shm" if one.startswith("psm_") else ""  # noqa: S108 - by its name
                Path(folder, one).unlink(missing_ok=True)
        self._forget()
