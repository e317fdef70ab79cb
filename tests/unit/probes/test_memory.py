"""Each instrument of memory and of Python's things reads exactly what was made, and reads it gone again."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.catalog import open_instruments
from pytest_leakcheck.probes.memory import PAGE, Mapped, Rss, _sum_uncounted
from pytest_leakcheck.probes.native_heap import Heap, is_quiet, open_readings, other_allocator
from pytest_leakcheck.probes.runtime_counters import Blocks, Objects, Tasks, list_tasks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MIB = 2**20


@pytest.fixture
def libc() -> Any:
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


@pytest.mark.parametrize("size", [5000, 100_000, 8 * MIB])
def test_heap_sees_what_malloc_gave_and_got_back(libc: Any, size: int) -> None:
    # The largest is a mapping of its own: glibc counts those apart. Below 1 KiB a block would stay in the thread's cache.
    heap = Heap()
    heap.open()
    heap.read()
    before = heap.read()
    block = libc.malloc(size)
    held = heap.read()
    libc.free(block)
    assert size <= held - before <= size + 2 * 4096
    assert heap.read() == before
    heap.close()


def test_each_retained_block_shows_beside_free_blocks_of_the_next_size() -> None:
    """Malloc serves a request by one of these, and the cache of freed blocks then lacks a block of the own size."""
    program = """
from pytest_leakcheck.probes.native_heap import Heap, _libc
heap, libc = Heap(), _libc()
heap.open()
free = [(libc.malloc(392), libc.malloc(2000))[0] for _ in range(20)]
heap.start(1.0)
for block in free:
    libc.free(block)
readings = [heap.read_in_series()]
for _ in range(12):
    libc.malloc(376)
    readings.append(heap.read_in_series())
print(*(after - before for before, after in zip(readings, readings[1:])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # A block takes 384 bytes, or 400. Some of Python's own may come in between, most in the first turn.
    rises = [int(rise) for rise in done.stdout.split()]
    assert min(rises) >= 384 - 64, done.stdout
    assert sum(rises) <= 12 * 400 + 1024, done.stdout


@pytest.mark.parametrize("depth", [0, 1, 7, 16])
def test_the_cache_of_freed_blocks_is_as_deep_as_the_allocator_makes_it(depth: int) -> None:
    program = """
from pytest_leakcheck.probes.native_heap import Heap, _libc
heap, libc = Heap(), _libc()
heap.open()
held = [libc.malloc(1000) for _ in range(20)]
heap.start(0.0)
readings = [heap.read()]
for block in held:
    libc.free(block)
    readings.append(heap.read())
print(*(after - before for before, after in zip(readings, readings[1:])))
"""
    environment = os.environ | {"GLIBC_TUNABLES": f"glibc.malloc.tcache_count={depth}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    # None of them is kept, because the cache is full.
    assert [int(change) <= -1000 + 64 for change in done.stdout.split()] == [True] * 20, done.stdout


class Bypassed:
    """A malloc, simulated, that takes blocks from a cache of 16 per size, to which realloc returns none (glibc 2.43)."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.cached: dict[int, list[int]] = {}
        self.used = 0
        self.mallinfo2 = Function(lambda: SimpleNamespace(uordblks=self.used, hblkhd=0))

    def malloc(self, size: int) -> int:
        cached = self.cached.setdefault(size, [])
        if not cached and size <= 1032:
            # A block of the next size is given away, and many of the same size are taken along.
            self.sizes |= {(new := len(self.sizes) + 1): size}
            self.used += 16 * size
            cached += [new] * 16
        if cached:
            return cached.pop()
        self.sizes[len(self.sizes) + 1] = size
        self.used += size
        return len(self.sizes)

    def free(self, block: int) -> None:
        size = self.sizes[block]
        if size <= 1032 and len(self.cached[size]) < 16:
            self.cached[size].append(block)
        else:
            self.used -= size

    def realloc(self, block: int, size: int) -> int:
        self.used -= self.sizes[block]
        return self.malloc(size)


def test_lists_that_grow_leave_the_heap_level_where_realloc_bypasses_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Bypassed()
    monkeypatch.setattr("pytest_leakcheck.probes.native_heap._libc", lambda: allocator)
    heap = Heap()
    heap.open()
    heap.start(0.0)

    def readings(read: Callable[[], int]) -> list[int]:
        found = []
        for turn in range(40):
            for _ in range(turn % 5):
                allocator.free(allocator.realloc(allocator.malloc(568), 2000))
            found.append(read())
        return found

    assert max(readings(heap.read)) - min(readings(heap.read)) >= 14 * 568
    assert len({*readings(heap.read_in_series)}) == 1


def test_heap_asks_psutil_where_the_c_library_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_leakcheck.probes.native_heap._libc", lambda: ctypes.PyDLL(None).no_such_function)
    monkeypatch.setattr(psutil, "heap_info", lambda: SimpleNamespace(heap_used=1000, mmap_used=24), raising=False)
    heap = Heap()
    heap.open()
    assert heap.read() == 1024


def test_heap_is_unavailable_where_nobody_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_leakcheck.probes.native_heap._libc", lambda: ctypes.PyDLL(None).no_such_function)
    monkeypatch.delattr(psutil, "heap_info", raising=False)
    instruments, missing = open_instruments(["heap", "object"])
    assert [instrument.resource for instrument in instruments] == ["object"]
    assert str(missing["heap"]) == (
        "neither the C library (mallinfo2: glibc 2.33 or newer) nor psutil (heap_info: 7.2 or newer) counts malloc's "
        "bytes here; rss_budget needs neither"
    )
    assert not is_quiet()


@pytest.mark.parametrize("depth", [0, 7, 16])
def test_a_heap_is_quiet_where_the_allocator_was_started_so(depth: int) -> None:
    program = """
from pytest_leakcheck.probes.native_heap import is_quiet, thread_cache_bytes
print(is_quiet(), is_quiet(), thread_cache_bytes())
"""
    environment = os.environ | {"GLIBC_TUNABLES": f"glibc.malloc.tcache_count={depth}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(not depth)] * 2 + [str(64 * 528 * depth)]


def test_objects_counts_what_was_made_since_the_freeze() -> None:
    objects = Objects()
    objects.open()
    gc.collect()
    gc.freeze()
    try:
        # Numbers are taken down before they are compared: an assertion makes objects of its own.
        before = objects.read()
        kept = [[] for _ in range(100)]  # type: ignore[var-annotated]
        held = objects.read()
        del kept
        after = objects.read()
    finally:
        gc.unfreeze()
    assert (held - before, after - before) == (101, 0)
    # Unfrozen, the whole program is in sight.
    assert objects.read() > before + 1000


def test_blocks_counts_what_the_collector_does_not_know() -> None:
    blocks = Blocks()
    blocks.open()
    kept: list[bytes] = [b""] * 1000
    before = blocks.read()
    kept[:] = [bytes([number % 256, 1, 2, 3]) for number in range(1000)]
    held = blocks.read()
    kept[:] = [b""] * 1000
    after = blocks.read()
    assert 1000 <= held - before <= 1010
    assert abs(after - before) <= 10


def test_blocks_are_unavailable_where_python_uses_malloc() -> None:
    code = (
        "from pytest_leakcheck.probes.catalog import open_instruments; print(*open_instruments(['block'])[1].values())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONMALLOC": "malloc"},
        capture_output=True,
        text=True,
        check=True,
    )
    reason = "Python's own allocator is disabled (PYTHONMALLOC); heap_budget counts these blocks instead"
    assert said.stdout.strip() == reason


@pytest.mark.parametrize("file", [False, True], ids=["anonymous", "file"])
def test_mapped_sees_what_is_mapped_and_not_touched(tmp_path: Path, file: bool) -> None:
    (tmp_path / "file").write_bytes(bytes(MIB))
    mapped = Mapped()
    mapped.open()
    with (tmp_path / "file").open("rb") as opened:
        before = mapped.read()
        one = mmap.mmap(opened.fileno() if file else -1, MIB, access=mmap.ACCESS_READ)
        held = mapped.read()
        one.close()
        after = mapped.read()
    mapped.close()
    assert (held - before, after - before) == (MIB, 0)


_STACK = 8 * MIB


def lines_of(sizes: Sequence[tuple[int, str]]) -> bytes:
    """The text of /proc/self/maps for mappings of these sizes and rights, each below the next."""
    text, at = "", 0x7F0000000000
    for size, rights in sizes:
        text += f"{at:x}-{at + size:x} {rights} 00000000 00:00 0                    [anon: glibc: malloc]\n"
        at += size
    return text.encode()


@pytest.mark.parametrize(
    ("mappings", "threads", "uncounted"),
    [
        pytest.param([(MIB, "rw-p"), (MIB, "r--p")], 1, 0, id="plain"),
        pytest.param([(63 * MIB, "---p"), (MIB, "rw-p"), (63 * MIB, "---p")], 1, 126 * MIB, id="arenas"),
        pytest.param([(PAGE, "---p"), (_STACK, "rw-p"), (MIB, "rw-p")], 1, PAGE + _STACK, id="running"),
        pytest.param([(PAGE, "---p"), (MIB, "rw-p")], 0, PAGE, id="guarded block"),
        pytest.param(
            [(PAGE, "---p"), (_STACK, "rw-p"), (PAGE, "---p"), (MIB, "rw-p")], 1, 2 * PAGE + _STACK, id="largest"
        ),
        pytest.param([(PAGE, "---p"), (_STACK, "rw-p")], 0, PAGE + _STACK, id="ended"),
        pytest.param([(PAGE, "---p"), (_STACK - PAGE, "rw-p")], 0, _STACK, id="older glibc"),
        pytest.param([(PAGE, "---p"), (_STACK, "rw-p")] * 100, 3, 100 * PAGE + 67 * _STACK, id="too many"),
    ],
)
def test_what_is_not_counted_of_the_mappings(mappings: Sequence[tuple[int, str]], threads: int, uncounted: int) -> None:
    assert _sum_uncounted(lines_of(mappings), threads, _STACK) == uncounted


def test_tasks_counts_pending_ones_and_finished_ones_that_are_kept() -> None:
    async def count() -> tuple[int, int, int]:
        tasks = Tasks()
        tasks.open()
        before = tasks.read()
        kept = [asyncio.ensure_future(asyncio.sleep(60)) for _ in range(5)]
        await asyncio.sleep(0)
        pending = tasks.read()
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        del task
        finished = tasks.read()
        kept.clear()
        await asyncio.sleep(0)
        gc.collect()
        return pending - before, finished - before, tasks.read() - before

    assert asyncio.run(count()) == (5, 5, 0)


class OwnTask(asyncio.Task[None]):
    """A class of tasks that the program has made."""


@pytest.mark.parametrize("kind", [asyncio.Task, OwnTask, asyncio.tasks._PyTask], ids=["native", "own", "python"])  # type: ignore[attr-defined]
def test_tasks_of_a_closed_loop_are_counted_and_listed_once_they_are_frozen_too(kind: type[asyncio.Task[None]]) -> None:
    loop = asyncio.new_event_loop()
    kept: list[asyncio.Task[None]] = []

    async def begin() -> None:
        kept.extend(kind(asyncio.sleep(3600), loop=loop) for _ in range(3))
        await asyncio.sleep(0)

    tasks = Tasks()
    tasks.open()
    before = tasks.read()
    loop.run_until_complete(begin())
    loop.close()
    assert tasks.read() - before == 3
    assert {*map(id, kept)} <= {*map(id, list_tasks())}
    gc.freeze()
    try:
        assert tasks.read() - before == 3
        assert {*map(id, kept)} <= {*map(id, list_tasks())}
    finally:
        gc.unfreeze()
    gone = {*map(id, kept)}
    for task in kept:
        # Otherwise asyncio logs that it was destroyed.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.get_coro().close()
    del task
    kept.clear()
    gc.collect()
    assert tasks.read() == before
    assert not gone & {*map(id, list_tasks())}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks start eagerly from Python 3.12 on")
def test_tasks_that_ended_in_their_first_step_are_counted_while_they_are_referenced() -> None:
    async def at_once() -> None:
        pass

    async def count() -> tuple[int, int]:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        tasks = Tasks()
        tasks.open()
        before = tasks.read()
        kept = [asyncio.create_task(at_once()) for _ in range(4)]
        assert all(task.done() for task in kept)
        held = tasks.read() - before
        kept.clear()
        return held, tasks.read() - before

    # Up to Python 3.13 the sets contain only those that did not end.
    assert asyncio.run(count()) == (4 if sys.version_info >= (3, 14) else 0, 0)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.13 and earlier keep all tasks in sets")
def test_tasks_are_not_counted_where_references_to_a_class_are_counted_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    with pytest.raises(Unavailable, match="free-threaded Python"):
        Tasks().open()


def test_rss_sees_pages_that_were_touched_and_given_back() -> None:
    rss = Rss()
    rss.open()
    before = rss.read()
    block = b"x" * (16 * MIB)
    held = rss.read()
    del block
    assert 15 * MIB <= held - before <= 17 * MIB
    assert abs(rss.read() - before) <= MIB
    rss.close()


@pytest.mark.parametrize(("huge", "more"), [("", 0), ("HugetlbPages:\t    4096 kB\n", 4 * MIB)])
def test_rss_has_huge_pages_where_the_kernel_counts_them(huge: str, more: int) -> None:
    """Simulated: the machine that runs the tests may have none."""
    rss, text = Rss(), f"RssAnon:\t    1024 kB\nRssFile:\t       8 kB\nRssShmem:\t    2048 kB\n{huge}Threads:\t1\n"
    rss.open()
    status, rss._status = rss._status, SimpleNamespace(read=lambda _size: text.encode())  # type: ignore[assignment]
    assert rss.read() == 3 * MIB + more
    rss._status = status
    rss.close()


@pytest.mark.parametrize(
    ("resource", "reason"),
    [
        ("rss", "resident memory is read from /proc/self/status, which exists only on Linux"),
        ("mmap", "mapped bytes are read from /proc/self/statm, which exists only on Linux"),
    ],
)
def test_without_proc_memory_is_unavailable(monkeypatch: pytest.MonkeyPatch, resource: str, reason: str) -> None:
    def no_such_file(*_: object) -> int:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_such_file)
        _instruments, missing = open_instruments([resource])
    assert str(missing[resource]) == reason


KIB = 1024


class Function:
    """What ctypes makes of a function, simulated; it takes attributes."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        return self._call(*given)


class Allocator:
    """A malloc with statistics, simulated. A freed block stays in the thread's cache until that is flushed."""

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.cached = self.shown = 0
        self.status = 0

    def malloc(self, size: int) -> int:
        self.blocks[len(self.blocks) + 1] = size
        return len(self.blocks)

    def free(self, block: int) -> None:
        self.cached += self.blocks[block]
        self.blocks[block] = 0

    def mallctl(self, name: bytes, to: Any, _size: Any, new: Any, _new_size: int) -> int:
        if self.status:
            return self.status
        if name == b"thread.tcache.flush":
            self.cached = 0
        elif name == b"epoch":
            assert new._obj.value
            self.shown = sum(self.blocks.values()) + self.cached
        else:
            assert name == b"stats.allocated"
            to._obj.value = self.shown
        return 0

    def property(self, name: bytes, to: Any) -> int:
        assert name == b"generic.current_allocated_bytes"
        to._obj.value = sum(self.blocks.values())
        return int(not self.status)


@pytest.fixture
def allocator() -> Allocator:
    return Allocator()


def library(allocator: Allocator, *functions: str) -> SimpleNamespace:
    """A process with these functions; glibc's counter stands still."""
    calls = {"mallctl": allocator.mallctl, "MallocExtension_GetNumericProperty": allocator.property}
    still = SimpleNamespace(uordblks=KIB, hblkhd=0)
    return SimpleNamespace(
        malloc=ctypes.PyDLL(None).malloc,
        mallinfo2=Function(lambda: still),
        **{name: Function(calls[name]) for name in functions},
    )


@pytest.fixture(params=[("mallctl", "jemalloc"), ("MallocExtension_GetNumericProperty", "tcmalloc")])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, allocator: Allocator) -> str:
    function, name = request.param
    found = library(allocator, function)
    monkeypatch.setattr(ctypes, "PyDLL", lambda _: found)
    return str(name)


def test_a_reading_is_what_is_in_use(name: str, allocator: Allocator) -> None:
    ((found, read),) = open_readings()
    assert (found, read()) == (name, 0)
    block = allocator.malloc(4096)
    assert read() == 4096
    allocator.free(block)
    assert read() == 0


def test_statistics_that_are_lost_are_an_error(name: str, allocator: Allocator) -> None:
    ((_name, read),) = open_readings()
    allocator.status = 2
    with pytest.raises(Unavailable, match=name):
        read()


def test_the_heap_is_read_by_them(name: str, allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_leakcheck.probes.native_heap._libc", lambda: allocator)
    heap = Heap()
    heap.open()
    heap.start(1.0)
    assert (heap.allocator, heap.read()) == (name, 0)
    allocator.malloc(100)
    assert (heap.read(), heap.read_in_series()) == (100, 100)
    assert (other_allocator(), is_quiet()) == (name, True)


def test_statistics_that_do_not_count_malloc_are_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a library brings a jemalloc of its own, and malloc is a third one's."""
    assert name
    monkeypatch.setattr("pytest_leakcheck.probes.native_heap._libc", Allocator)
    with pytest.raises(Unavailable, match=r"^malloc is not glibc's: "):
        Heap().open()
    assert (other_allocator(), is_quiet()) == ("", False)
