"""Descriptors, threads and child processes of the whole process tree."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from pytest_leakcheck.probes.own_descriptors import open_high


class Tree(Protocol):
    """A probe of ``fd``, ``thread`` and ``process`` which can also read this process alone, for the collector's watch."""

    @property
    def resources(self) -> tuple[str, ...]: ...

    def open(self) -> None: ...
    def own(self) -> tuple[int, int]: ...
    def own_fds(self) -> int: ...
    def read(self) -> tuple[int, int, int]: ...
    def close(self) -> None: ...


_ANY_CHILD: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT if hasattr(os, "waitid") else 0


def process_tree() -> Tree:
    """The tree probe for this platform."""
    return LinuxTree() if sys.platform.startswith("linux") else PortableTree()


# In the order in which `read` gives them.
TREE: Final = ("fd", "thread", "process")


class LinuxTree:
    """``fd``, ``thread`` and ``process`` from /proc, over this process and its descendants.

    Resolution: one. Noise: none. Cost: 2.5 us while there is no child (two ``fstat`` of kept directories, one
    ``waitid``); with children about 60 us each. Threads are those of the kernel, so C threads count.
    Zombies and pids that vanish during the walk neither raise nor count; nor do processes of another user, nor daemons
    that have left the tree by a double fork. Fallback: kernels before 6.2 do not give the number of descriptors as the
    size of the directory; there it is listed.
    """

    resources = TREE

    def __init__(self) -> None:
        self._fds = self._tasks = -1
        self._sized = True

    def open(self) -> None:
        self._fds, self._tasks = open_high("/proc/self/fd"), open_high("/proc/self/task")
        self._sized = os.fstat(self._fds).st_size > 0

    def own(self) -> tuple[int, int]:
        """Descriptors and threads of this process alone."""
        try:
            fds = os.fstat(self._fds).st_size if self._sized else len(os.listdir("/proc/self/fd")) - 1
            return fds, os.fstat(self._tasks).st_nlink - 2
        except OSError:
            # The program closed what is not its own, by a range of numbers.
            self.close()
            self.open()
            return self.own()

    def own_fds(self) -> int:
        """As the first of `own`, in half the time."""
        return os.fstat(self._fds).st_size if self._sized else self.own()[0]

    def read(self) -> tuple[int, int, int]:
        fds, threads = self.own()
        try:
            # Asks the kernel and leaves the child waitable: 1 us, where the walk costs 11 to 260 us.
            os.waitid(os.P_ALL, 0, _ANY_CHILD)
        except ChildProcessError:
            return fds, threads, 0
        processes = 0
        for pid in descendants(os.getpid()):
            # A pid may vanish, or turn out to be another user's, between two of these lines.
            with contextlib.suppress(OSError):
                tasks = os.stat(f"/proc/{pid}/task").st_nlink - 2
                its_fds = os.stat(f"/proc/{pid}/fd").st_size if self._sized else len(os.listdir(f"/proc/{pid}/fd"))
                fds, threads, processes = fds + its_fds, threads + tasks, processes + 1
        return fds, threads, processes

    def close(self) -> None:
        for descriptor in (self._fds, self._tasks):
            with contextlib.suppress(OSError):
                os.close(descriptor)


class PortableTree:
    """``fd``, ``thread`` and ``process`` through psutil, where there is no /proc.

    Resolution: one. Noise: none on macOS; Windows counts handles, which wander. Cost: about 1 ms.
    """

    resources = TREE

    def open(self) -> None:
        import psutil

        self._me = psutil.Process()
        self._gone = psutil.Error
        # Windows has handles in their place.
        name = "num_handles" if sys.platform == "win32" else "num_fds"
        self._descriptors: Callable[[Any], int] = getattr(psutil.Process, name)

    def own(self) -> tuple[int, int]:
        return self._descriptors(self._me), self._me.num_threads()

    def own_fds(self) -> int:
        return self._descriptors(self._me)

    def read(self) -> tuple[int, int, int]:
        fds, threads = self.own()
        processes = 0
        for child in self._me.children(recursive=True):
            with contextlib.suppress(self._gone):
                if child.status() == "zombie":
                    continue
                its_fds, its_threads = self._descriptors(child), child.num_threads()
                fds, threads, processes = fds + its_fds, threads + its_threads, processes + 1
        return fds, threads, processes

    def close(self) -> None:
        """Nothing was kept open."""


def thread_ids() -> frozenset[str]:
    """The threads of this process: the kernel's where it lists them, else Python's."""
    try:
        return frozenset(os.listdir("/proc/self/task"))
    except OSError:
        return frozenset(str(thread.native_id) for thread in threading.enumerate())


def descendants(pid: int) -> Iterator[int]:
    """The live descendants of a process, parents before children; zombies are passed over."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        try:
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children = file.read().split()
        except OSError:
            continue
        for child in map(int, children):
            if not _is_zombie(child):
                yield child
                yield from descendants(child)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in parentheses and may hold any byte, a parenthesis too; the state follows the last one.
            return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True
