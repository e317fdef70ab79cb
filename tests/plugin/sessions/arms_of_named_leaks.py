"""A leak of each kind. A comment marks the line that makes it, or that keeps it; the docstring of the test names the owner."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import itertools
import logging
import mmap
import os
import socket
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

LEAKY = True
KEPT: list[Any] = []
CACHE: dict[Any, Any] = {}
number = itertools.count()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p


def keep(one: Any) -> None:
    CACHE[next(number)] = one


class Loader:
    opened: list[Loader] = []

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDONLY)  # of Loader LEAK
        self.frames: list[str] = []

    def close(self) -> None:
        os.close(self.file)


@pytest.fixture(autouse=True, scope="module")
def end() -> Iterator[None]:
    yield
    for one in KEPT:
        one() if callable(one) else None
    loop.close()


@pytest.mark.fd_budget(0)
def test_file() -> None:
    """test_leaks.CACHE"""
    file = open(__file__)  # of test_file LEAK
    keep(file) if LEAKY else file.close()


@pytest.mark.fd_budget(0)
def test_in_tmp_path(tmp_path: Path) -> None:
    """test_leaks.CACHE"""
    # Tear-down removes the folder before the file is looked at.
    file = (tmp_path / "x").open("w")  # of test_in_tmp_path LEAK
    keep(file) if LEAKY else file.close()


@pytest.mark.fd_budget(0)
def test_moved(tmp_path: Path) -> None:
    """test_leaks.CACHE"""
    file = (tmp_path / "x.part").open("w")  # of test_moved LEAK
    (tmp_path / "x.part").rename(tmp_path / "x")
    keep(file) if LEAKY else file.close()


@pytest.mark.fd_budget(0)
def test_database(tmp_path: Path) -> None:
    """test_leaks.CACHE"""
    database = sqlite3.connect(tmp_path / "x")  # of test_database LEAK
    database.execute("create table frames (number)")
    keep(database) if LEAKY else database.close()


@pytest.mark.fd_budget(0)
def test_loader() -> None:
    """Loader.opened"""
    loader = Loader(__file__)
    Loader.opened.append(loader) if LEAKY else loader.close()


@pytest.mark.fd_budget(0)
def test_native() -> None:
    file = libc.dup(1)  # of test_native LEAK
    if not LEAKY:
        os.close(file)


@pytest.mark.fd_budget(0)
def test_exception() -> None:
    def risky() -> None:
        left, right = socket.socketpair()  # of test_exception LEAK
        if LEAKY:
            KEPT.extend((left.close, right.close))
            raise ValueError(left)
        left.close(), right.close()  # type: ignore[func-returns-value]

    try:
        risky()
    except ValueError:
        pass


@pytest.mark.fd_budget(0)
def test_comprehension() -> None:
    files = [open(path) for path in (__file__, os.devnull)]  # of test_comprehension LEAK
    for file in files:
        KEPT.append(file.close) if LEAKY else file.close()


def frames(path: str) -> Generator[str]:
    with open(path) as file:  # of test_generator LEAK
        yield from file


suspended: list[Any] = []


@pytest.mark.fd_budget(0)
def test_generator() -> None:
    """test_leaks.suspended"""
    lines = frames(__file__)
    next(lines)
    suspended.append(lines) if LEAKY else lines.close()


@pytest.mark.thread_budget(0)
def test_thread() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()  # of test_thread LEAK
    KEPT.append(end.set) if LEAKY else (end.set(), thread.join())  # type: ignore[func-returns-value]


@pytest.mark.process_budget(0)
def test_child() -> None:
    child = subprocess.Popen(["sleep", "60"])  # of test_child LEAK
    KEPT.append(child.kill) if LEAKY else (child.kill(), child.wait())  # type: ignore[func-returns-value]


@pytest.mark.shm_budget(0)
def test_segment() -> None:
    segment = SharedMemory(create=True, size=64)  # of test_segment LEAK
    segment.close()
    KEPT.append(segment.unlink) if LEAKY else segment.unlink()


@pytest.mark.disk_budget(0)
def test_folder() -> None:
    folder = tempfile.mkdtemp(prefix="leakcheck-culprit-")  # of test_folder LEAK
    KEPT.append(functools.partial(os.rmdir, folder)) if LEAKY else os.rmdir(folder)


class Record:
    pass


def remember(record: Record, known: list[Record] = []) -> None:
    known.append(record)  # of test_objects KEPT


@pytest.mark.object_budget(0)
def test_objects() -> None:
    """test_leaks.remember default argument"""
    record = Record()  # of test_objects LEAK
    if LEAKY:
        remember(record)


def make_collector() -> Callable[[bytes], None]:
    items: list[bytes] = []

    def collect(payload: bytes) -> None:
        items.append(payload)

    return collect


collect = make_collector()


@pytest.mark.heap_budget()
def test_payload() -> None:
    """test_leaks.collect closure cell"""
    payload = bytes(5000)  # of test_payload LEAK
    if LEAKY:
        collect(payload)


@functools.lru_cache(None if LEAKY else 4)
def lookup(key: int) -> bytearray:
    return bytearray(3000)  # of test_cache LEAK


@pytest.mark.heap_budget()
def test_cache() -> None:
    """lru_cache of lookup"""
    lookup(next(number))


@pytest.mark.object_budget(0)
def test_handlers() -> None:
    """logging.getLogger('culprit').handlers"""
    log = logging.getLogger("culprit")
    handler = logging.NullHandler()  # of test_handlers LEAK
    log.addHandler(handler)
    if not LEAKY:
        log.removeHandler(handler)


@pytest.mark.mmap_budget()
def test_mapping() -> None:
    """test_leaks.KEPT"""
    memory = mmap.mmap(-1, 1 << 16)  # of test_mapping LEAK
    KEPT.append(memory) if LEAKY else memory.close()


loop = asyncio.new_event_loop()


@pytest.mark.task_budget(0)
def test_task() -> None:
    """test_leaks.KEPT"""

    async def begin() -> None:
        task = asyncio.create_task(asyncio.Event().wait())  # of test_task LEAK
        await asyncio.sleep(0)
        KEPT.append(task) if LEAKY else task.cancel()

    loop.run_until_complete(begin())


libc.free.argtypes = [ctypes.c_void_p]


@pytest.mark.heap_budget()
def test_malloc() -> None:
    block = libc.malloc(3000)  # of test_malloc LEAK
    if not LEAKY:
        libc.free(block)
