"""Read resident memory, its peak, mapped address space and mappings; load the C library."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from array import array
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.own_descriptors import OwnFile, open_own


@cache
def load_libc() -> ctypes.CDLL:
    """Return the C library of this process; its functions set `ctypes.get_errno`."""
    # It is loaded once: each load leaves a reference cycle, which was once reported as the leak of
    # a test.
    return ctypes.CDLL(None, use_errno=True)


_LINE: Final = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ (\d+) *(.*)$", re.MULTILINE)


class MemoryMapping(NamedTuple):
    """One mapping, from address `start` up to `end`.

    `rights` are letters as in ``rw-p``; `inode` is 0 without a file. `path` may also be a label
    such as ``[heap]``.
    """

    start: int
    end: int
    rights: bytes
    inode: int
    path: str

    @property
    def is_memory(self) -> bool:
        """Whether it is memory without a file, and not a special one such as heap or stack."""
        return not self.inode and (not self.path or self.path.startswith("[anon"))


def read_maps(process: str = "self") -> bytes:
    """Return the text that lists the mappings of a process; empty if it cannot be read."""
    with suppress(OSError), open(f"/proc/{process}/maps", "rb") as file:
        return file.read()
    return b""


def read_mappings(process: str = "self", containing: bytes = b"") -> Iterator[MemoryMapping]:
    """Yield the mappings in address order; none if they cannot be read, or lack a text."""
    maps = read_maps(process)
    # Hardly any process maps a file of a given folder, and some have thousands of mappings.
    if containing in maps:
        yield from parse_mappings(maps)


def parse_mappings(maps: bytes) -> Iterator[MemoryMapping]:
    """Yield the mappings that a text of the form of ``/proc/PID/maps`` lists."""
    for match in _LINE.finditer(maps):
        start, end, rights, inode, path = match.groups()
        yield MemoryMapping(
            int(start, 16), int(end, 16), rights, int(inode), os.fsdecode(path) if path else ""
        )


# What the kernel calls memory that processes share, and that no file on a disk holds.
_SHARED: Final = ("/dev/shm/", "/dev/zero", "/memfd:", "/SYSV")  # noqa: S108 - no file is made there
_HEAP_RESIDENT: Final = re.compile(rb"\[heap\]\n(?:.*\n)*?Rss: +(\d+) kB")
# The first arena follows the program, which is mapped first: this many bytes of smaps have both.
_SMAPS_START: Final = 1 << 15


def shared_bytes() -> int:
    """Return the size of all mapped memory that processes may share, resident or not."""
    return sum(one.end - one.start for one in read_mappings() if one.path.startswith(_SHARED))


def first_arena_bytes() -> int:
    """Return the resident bytes of the first arena of malloc; 0 if they cannot be read."""
    # Cost: 0.1 ms, and about 50 us for each MiB.
    with suppress(OSError), open("/proc/self/smaps", "rb", buffering=0) as file:
        text = b""
        while len(text) < _SMAPS_START and (more := file.read(_SMAPS_START)):
            text += more
            if found := _HEAP_RESIDENT.search(text):
                return int(found[1]) * 1024
    return 0


# This value, written to /proc/self/clear_refs, resets the peak to the memory that is resident now
# (man 5 proc).
_RESET_PEAK: Final = b"5"
PAGE: Final = mmap.PAGESIZE


class _Reader:
    """Base class for an instrument that keeps files of /proc open."""

    def __init__(self) -> None:
        self._files: list[OwnFile] = []

    def _keep(self, file: OwnFile) -> OwnFile:
        self._files.append(file)
        return file

    def close(self) -> None:
        while self._files:
            self._files.pop().close()


class _Status(_Reader):
    """The fields of /proc/self/status, and `malloc_trim` of the C library."""

    resource = "rss"

    def open(self) -> None:
        try:
            self._status = self._keep(open_own("/proc/self/status"))
        except (OSError, ImportError):
            raise Unavailable(
                "resident memory is read from /proc/self/status, which exists only on Linux"
            ) from None
        self._trim: Any = getattr(load_libc(), "malloc_trim", None)

    def trim(self) -> None:
        """Return the allocator's free memory to the system; growth that reuses it is invisible."""
        if self._trim is not None:
            self._trim(0)


class Rss(_Status):
    """``rss``: anonymous resident bytes (RssAnon, RssShmem, HugetlbPages) after ``malloc_trim``.

    Resolution: a page; kernels before 6.17 are off by up to 64 pages per CPU. Noise: the allocator
    retains freed pages, so `read` first returns them to the system (trims them); with varying
    allocation sizes, the value still fluctuates by megabytes. Cost: 8 us plus the trim (2 us to 1.4
    ms), so the plugin reads it rarely until it rises (`runner.readings`). Scope: this process, with
    shared anonymous pages and /dev/shm, but not other files, because reading a mapped file is no
    leak; children are read one by one (`anonymous_of`).
    """

    # Off if no budget names the resource. Then nothing is trimmed, which would change the mapped
    # memory, and children do not count (`runner.readings`).
    named = True

    def read(self) -> int:
        if self.named:
            self.trim()
        text = self._status.read(4096)
        # The kernel counts huge pages of hugetlbfs apart, if it has them.
        huge = _field(text, b"HugetlbPages:") if b"HugetlbPages:" in text else 0
        return _field(text, b"RssAnon:") + _field(text, b"RssShmem:") + huge


class PeakRss(_Status):
    """The peak of resident bytes (VmHWM) since the last `reset`.

    Resolution: 128 KiB per CPU that the process runs on, because each CPU updates the kernel's
    counters in batches of 32 pages. `now`, the resident bytes, is exact from kernel 6.17 on, and as
    coarse before. Cost: 10 us for `read`, 1.2 us for `now`. Scope: this process. Pages of files
    count when first touched, so a library loaded during the run is a constant part.
    """

    def open(self) -> None:
        super().open()
        try:
            self._statm = self._keep(open_own("/proc/self/statm"))
            clear = OwnFile(lambda: os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC))
            self._clear = self._keep(clear)
            os.write(self._clear.number, _RESET_PEAK)
        except OSError as error:
            self.close()
            raise Unavailable(
                f"the peak of resident memory cannot be reset: /proc/self/clear_refs: {error.strerror}"
            ) from None

    def reset(self) -> int:
        """Reset the peak to the memory that is resident now, and return that amount."""
        self._clear.status()
        os.write(self._clear.number, _RESET_PEAK)
        return self._read_field(b"VmRSS:")

    def read(self) -> int:
        return self._read_field(b"VmHWM:")

    def now(self) -> int:
        return int(self._statm.read(64).split(None, 2)[1]) * PAGE

    def _read_field(self, name: bytes) -> int:
        return _field(self._status.read(4096), name)


def peak_of(pid: int) -> int:
    """Return the peak of resident bytes of another process; 0 if it is gone or may not be read."""
    return _read_field_of_process(pid, b"VmHWM:")


def resident_of(pid: int) -> int:
    """Return the resident bytes of another process; 0 if it is gone or may not be read."""
    return _read_field_of_process(pid, b"VmRSS:")


def anonymous_of(pid: int) -> int:
    """Return the anonymous resident bytes of a process; 0 if unreadable.

    A fork starts with its parent's pages.
    """
    # Cost: 20 us.
    return _read_field_of_process(pid, b"RssAnon:")


def _field(text: bytes, name: bytes) -> int:
    """Return the bytes of a field of /proc/PID/status."""
    at = text.index(name) + len(name)
    return int(text[at : text.index(b"kB", at)]) * 1024


def _read_field_of_process(pid: int, name: bytes) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return _field(file.read(), name)
    except (OSError, ValueError):
        return 0


_MAPS_CHUNK: Final = 1 << 16
# The number of stacks of ended threads that do not count. glibc keeps up to 40 MiB of them, and
# more as long as some of these threads have only just ended.
_MAX_ENDED_STACKS: Final = 64
# At most this many times are the mappings read for one value, if they change while they are read.
_MAX_READINGS: Final = 4


class Mapped(_Reader):
    """``mmap``: bytes of mapped address space, without reserved memory and the stacks of threads.

    Reserved memory may not be accessed, such as the unused part of an arena: `malloc` has up to 8
    arenas of 64 MiB per CPU. Stacks of ended threads, which glibc keeps, do not count if they have
    the usual size, unless they are too many. Resolution: a page. Noise: allocators map and unmap in
    megabytes, so levels less than 1 MiB apart cannot be distinguished, and only growth over the
    horizon (200 iterations) counts. Cost: 4 us; 0.4 ms (73 mappings) after a change of address
    space or threads. Scope: this process; only this counter includes files and memory that C code
    maps and never unmaps.
    """

    resource = "mmap"

    def __init__(self) -> None:
        super().__init__()
        # At the last reading of the mappings: the address space, the number of threads, and what
        # does not count. In an array, because new ints would be blocks that the harness allocates.
        self._last = array("q", (0, 0, 0))

    def open(self) -> None:
        try:
            self._statm = self._keep(open_own("/proc/self/statm"))
            self._maps = self._keep(open_own("/proc/self/maps"))
            self._tasks = self._keep(open_own("/proc/self/task"))
        except (OSError, ImportError):
            self.close()
            raise Unavailable(
                "mapped bytes are read from /proc/self/statm, which exists only on Linux"
            ) from None
        self._stack_size = _default_stack_size()

    def read(self) -> int:
        last, total = self._last, 0
        # A thread that ends unmaps stacks after `join` has returned. The mappings are read again if
        # that happened while they were read, because the two numbers would belong to different
        # moments.
        for _ in range(_MAX_READINGS):
            text = self._statm.read(24)
            # The links of the directory are "." and "..", and one for each thread.
            total, threads = int(text[: text.index(b" ")]) * PAGE, self._tasks.status().st_nlink - 2
            if total == last[0] and threads == last[1]:
                break
            last[0], last[1] = total, threads
            last[2] = _sum_uncounted(self._read_maps(), threads - 1, self._stack_size)
        return total - last[2]

    def _read_maps(self) -> bytes:
        chunks, at = [], 0
        while chunk := self._maps.read(_MAPS_CHUNK, at):
            chunks.append(chunk)
            at += len(chunk)
        return b"".join(chunks)


def _sum_uncounted(maps: bytes, threads: int, stack_size: int) -> int:
    """Return the bytes reserved and in stacks, of which the largest are those of ``threads``."""
    # ``threads`` leaves out the main thread. glibc reserves 64 MiB for each arena of `malloc`, and
    # puts one page that may not be accessed (a guard) below the stack of each thread. Older
    # versions of glibc take the guard from ``stack_size``, the usual size of a stack.
    reserved, stacks, guarded = 0, [], -1
    for mapping in parse_mappings(maps):
        size = mapping.end - mapping.start
        if mapping.rights == b"rw-p" and mapping.start == guarded and mapping.is_memory:
            stacks.append(size)
        guarded = -1
        if mapping.rights == b"---p" and mapping.is_memory:
            reserved += size
            guarded = mapping.end if size == PAGE else -1
    stacks.sort(reverse=True)
    ended = [size for size in stacks[threads:] if stack_size in (size, size + PAGE)]
    return reserved + sum(stacks[:threads]) + sum(ended[:_MAX_ENDED_STACKS])


def _default_stack_size() -> int:
    """Return the size of a thread's stack if the program does not set another; 0 if unknown."""
    library, attributes, size = load_libc(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    if hasattr(library, "pthread_getattr_default_np") and not library.pthread_getattr_default_np(
        attributes
    ):
        library.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    return size.value
