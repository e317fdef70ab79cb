"""Shared memory: segments and named semaphores that are never unlinked, and outlive the process that made them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing import resource_tracker
from multiprocessing.pool import Pool
from multiprocessing.shared_memory import ShareableList, SharedMemory
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import ClassVar

import numpy as np

from cases import clib
from cases.case import drain, leak, unique

FOLDER = Path("/dev/shm")
SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
SEMAPHORES: list[Semaphore] = []
SEGMENTS: list[SharedMemory] = []


def left() -> list[Path]:
    """What this process has left, found by its name: a list of them would be another leak."""
    return list(FOLDER.glob(f"*leakcheck-{os.getpid()}-*"))


def unlink_segments() -> None:
    for path in left():
        segment = SharedMemory(path.name)
        segment.close()
        segment.unlink()


def unlink_files() -> None:
    for path in left():
        path.unlink()


def closed_but_not_unlinked() -> None:
    segment = SharedMemory(unique("segment"), create=True, size=4096)
    segment.close()


def closed_and_unlinked() -> None:
    segment = SharedMemory(unique("segment"), create=True, size=4096)
    segment.close()
    segment.unlink()


def unlinked_but_not_closed() -> None:
    segment = SharedMemory(unique("segment"), create=True, size=4096)
    segment.unlink()
    SEGMENTS.append(segment)


def list_not_unlinked() -> None:
    shared = ShareableList([1, 2, 3], name=unique("list"))
    shared.shm.close()


def list_unlinked() -> None:
    shared = ShareableList([1, 2, 3], name=unique("list"))
    shared.shm.close()
    shared.shm.unlink()


def raw_file_left() -> None:
    path = FOLDER / unique("raw")
    path.write_bytes(b"frame")


def raw_file_removed() -> None:
    path = FOLDER / unique("raw")
    path.write_bytes(b"frame")
    path.unlink()


def array_left_on_error() -> None:
    path = FOLDER / unique("array")
    with contextlib.suppress(ValueError):
        np.zeros(512).tofile(path)
        np.fromfile(path).reshape(7, 7)
        path.unlink()


def array_removed_on_error() -> None:
    path = FOLDER / unique("array")
    with contextlib.suppress(ValueError):
        np.zeros(512).tofile(path)
        try:
            np.fromfile(path).reshape(7, 7)
        finally:
            path.unlink()


def segment_in_c() -> None:
    name = f"/{unique('c')}".encode()
    os.close(clib.shm_open(name, os.O_CREAT | os.O_RDWR, 0o600))


def segment_in_c_unlinked() -> None:
    name = f"/{unique('c')}".encode()
    os.close(clib.shm_open(name, os.O_CREAT | os.O_RDWR, 0o600))
    clib.shm_unlink(name)


def semaphore_in_c() -> None:
    name = f"/{unique('c')}".encode()
    clib.sem_close(clib.sem_open(name, os.O_CREAT, 0o600, 1))


def semaphore_in_c_unlinked() -> None:
    name = f"/{unique('c')}".encode()
    clib.sem_close(clib.sem_open(name, os.O_CREAT, 0o600, 1))
    clib.sem_unlink(name)


class Worker:
    """A process that is not forked, and makes segments."""

    pool: ClassVar[Pool]

    @classmethod
    def start(cls) -> None:
        cls.pool = SPAWN.Pool(1)
        cls.pool.apply(abs, (0,))

    @classmethod
    def end(cls) -> None:
        cls.pool.terminate()
        cls.pool.join()
        unlink_segments()


def closed_by_its_maker(name: str) -> None:
    segment = SharedMemory(name, create=True, size=4096)
    # It lives on until the receiver removes it.
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    segment.close()


def received() -> SharedMemory:
    name = unique("segment")
    Worker.pool.apply(closed_by_its_maker, (name,))
    segment = SharedMemory(name)
    segment.close()
    return segment


def received_and_left() -> None:
    resource_tracker.unregister(received()._name, "shared_memory")  # type: ignore[attr-defined]


def received_and_unlinked() -> None:
    received().unlink()


def semaphore_for_children_kept() -> None:
    SEMAPHORES.append(SPAWN.Semaphore(1))


def semaphore_for_children_dropped() -> None:
    with SPAWN.Semaphore(1):
        pass


def semaphore_without_a_name_kept() -> None:
    # Where children are forked, the name goes at once and the page that holds the count stays.
    SEMAPHORES.append(FORK.Semaphore(1))


def semaphore_without_a_name_dropped() -> None:
    with FORK.Semaphore(1):
        pass


CASES = (
    leak("segment_not_unlinked", "shm", closed_but_not_unlinked, closed_and_unlinked, unlink_segments,
         line='SharedMemory(unique("segment")'),
    leak("segment_not_closed", "fd mmap", unlinked_but_not_closed, closed_and_unlinked,
         drain(SEGMENTS, SharedMemory.close),
         line='SharedMemory(unique("segment")', owner=".SEGMENTS"),
    leak("segment_of_a_spawned_worker", "shm", received_and_left, received_and_unlinked, Worker.end,
         setup=Worker.start, line="Worker.pool.apply("),
    leak("shared_list_not_unlinked", "shm", list_not_unlinked, list_unlinked, unlink_segments, line="ShareableList("),
    leak("raw_file_left", "shm", raw_file_left, raw_file_removed, unlink_files, line="path.write_bytes("),
    leak("array_left_on_error", "shm", array_left_on_error, array_removed_on_error, unlink_files, line=".tofile(path)"),
    # Nothing tells who made what C code leaves in a folder that other processes use too.
    leak("segment_in_c", "shm", segment_in_c, segment_in_c_unlinked, unlink_files, verdict="inconclusive"),
    leak("semaphore_in_c", "shm", semaphore_in_c, semaphore_in_c_unlinked, unlink_files, verdict="inconclusive"),
    leak("semaphore_for_children", "shm mmap heap object block", semaphore_for_children_kept,
         semaphore_for_children_dropped, drain(SEMAPHORES),
         line="SPAWN.Semaphore(1)", owner=".SEMAPHORES"),
    leak("semaphore_without_a_name", "shm mmap heap object block", semaphore_without_a_name_kept,
         semaphore_without_a_name_dropped, drain(SEMAPHORES),
         line="FORK.Semaphore(1)", owner=".SEMAPHORES"),
)  # fmt: skip
