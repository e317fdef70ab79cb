"""Counts what each arm retains without the plugin: an instrument of its own, so that a case is what it says it is."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import sys
import tempfile
import time
from asyncio import Task
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from cases.case import Arm
from cases.catalog import ARMS
from cases.leftovers import PREFIX, Elsewhere

_MOST: Final = 300
_LEAST: Final = 12
# Of the processor, so that a busy machine makes no fewer calls; and of an arm that waits, by the clock.
_SECONDS: Final = 0.08
_SECONDS_WAITING: Final = 0.3
# The longest period of a clean arm that rises and falls.
_PERIOD: Final = 45


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ord", "sm", "hblks", "hblkhd", "usm", "fsm", "used", "free", "keep")
    ]


_libc = ctypes.PyDLL(None)
_mallinfo2 = _libc.mallinfo2
_mallinfo2.restype = _Mallinfo2


def heap() -> int:
    info = _mallinfo2()
    return int(info.used + info.hblkhd)


def entries(folder: str) -> int:
    return sum(len(folders) + len(files) for _path, folders, files in os.walk(folder))


def mapped() -> int:
    """Bytes of mapped memory that may be accessed, without stacks of threads: each lies behind one page that may not.

    glibc keeps stacks of ended threads, and which ones depends on the order in which they end.
    """
    total, guarded = 0, False
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights = line.split(maxsplit=2)[:2]
        first, end = (int(address, 16) for address in addresses.split("-"))
        accessible = rights[:3] != "---"
        if accessible and not guarded:
            total += end - first
        guarded = not accessible and end - first == os.sysconf("SC_PAGE_SIZE")
    return total


def resident() -> int:
    """Anonymous pages, of which malloc has given back what is free, and those of children."""
    _libc.malloc_trim(0)
    return sum(
        int(line.split()[1]) << 10
        for process in ("self", *children())
        for line in Path(f"/proc/{process}/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )


def children() -> list[str]:
    """Those that run; threads and children may vanish while they are looked at."""
    running = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            pids = (task / "children").read_text().split()
            running += [pid for pid in pids if " Z " not in Path(f"/proc/{pid}/stat").read_text()]
    return running


def descriptors() -> int:
    """Those of this process and of its children."""
    count = 0
    for process in ("self", *children()):
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{process}/fd"))
    return count


def blocks() -> int:
    # The interpreter's cache of attributes keeps names, by and by, and is no doing of a case.
    (getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache)()
    return sys.getallocatedblocks()


METERS: Final[dict[str, Callable[[], int]]] = {
    "fd": descriptors,
    "thread": lambda: len(os.listdir("/proc/self/task")),
    "process": lambda: len(children()),
    # Other programs write there too: only what bears this process's name.
    "shm": lambda: sum(f"leakcheck-{os.getpid()}-" in name for name in os.listdir("/dev/shm")),
    "disk": lambda: entries(tempfile.gettempdir()) + len(list(Elsewhere.folder.glob(f"{PREFIX}*"))),
    "mmap": mapped,
    "rss": resident,
    "heap": heap,
    "object": lambda: len(gc.get_objects()),
    "block": blocks,
    "task": lambda: sum(isinstance(one, Task) for one in gc.get_objects()),
}


def read() -> dict[str, int]:
    if gc.isenabled():
        gc.collect()
    return {name: meter() for name, meter in METERS.items()}


def settled(call: Arm, times: int) -> dict[str, int]:
    """The least of each counter over one period: whatever comes back to it was not retained."""
    readings = []
    for _ in range(times):
        call()
        readings.append(read())
    return {kind: min(reading[kind] for reading in readings) for kind in METERS}


def _while_time_is_left() -> Iterator[int]:
    began, began_waiting = time.process_time(), time.perf_counter()
    for calls in range(_MOST):
        worked, waited = time.process_time() - began, time.perf_counter() - began_waiting
        if calls >= _LEAST and (worked >= _SECONDS or waited >= _SECONDS_WAITING):
            return
        yield calls


def _call_in_folder(arm: Arm) -> None:
    with tempfile.TemporaryDirectory() as folder:
        arm(Path(folder))


def measure(name: str) -> dict[str, float]:
    """What an arm retains per call, once it has been called as often before."""
    case, arm = ARMS[name]
    call = partial(_call_in_folder, arm) if case.folder else arm
    case.setup()
    if arm is case.leaky and case.verdict == "unclosed":
        # What the collector would give back stays where there is none.
        gc.disable()
    try:
        for _ in range(case.settles_after):
            call()
        calls = 0
        for _ in _while_time_is_left():
            call()
            calls += 1
        gc.collect()
        gc.freeze()
        period = 1 if arm is case.leaky else min(_PERIOD, calls)
        before = settled(call, period)
        for _ in range(calls - period):
            call()
        after = settled(call, period)
    finally:
        gc.unfreeze()
        gc.enable()
        case.teardown()
    return {kind: (after[kind] - before[kind]) / calls for kind in METERS}


def main() -> None:
    # Where nothing handles a record, it would be printed.
    logging.getLogger().addHandler(logging.NullHandler())
    json.dump({name: measure(name) for name in sys.argv[1:] or ARMS}, sys.stdout)


if __name__ == "__main__":
    main()
