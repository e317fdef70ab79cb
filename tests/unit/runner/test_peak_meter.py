"""The peaks of one run, in this process: what is counted at each call, and memory between calls and by the kernel's mark."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from literal_readings import SleepingClock
from pytest_leakcheck.attribution.tracing import tracer
from pytest_leakcheck.attribution.tracing.allocations import Composition, tracing_memory
from pytest_leakcheck.model.culprit import Culprit
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.memory import PeakRss
from pytest_leakcheck.runner import peak_meter
from pytest_leakcheck.runner.peak_meter import Meter

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
MIB = 1 << 20


def peaks(work: Callable[[Meter], object], *wanted: str, naming: int = 0) -> tuple[dict[str, int], Meter]:
    meter = Meter(wanted, naming)
    meter.begin()
    try:
        work(meter)
    finally:
        _series, found, _phases = meter.end()
    return found, meter


def test_threads_files_and_shared_memory() -> None:
    def work(meter: Meter) -> None:
        end = threading.Event()
        threads = [threading.Thread(target=end.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        folders = [tempfile.mkdtemp(prefix="leakcheck-meter-") for _ in range(2)]
        segment = Path(f"/dev/shm/leakcheck-meter-{os.getpid()}")
        segment.write_bytes(b"x")
        # On a busy machine not every call is looked at, and a thread may be at the listing: a checkpoint always looks.
        for _ in range(50):
            meter.checkpoint("held")
            time.sleep(0.001)
        segment.unlink()
        for folder in folders:
            Path(folder).rmdir()
        end.set()
        for thread in threads:
            thread.join()

    found = peaks(work, "thread", "disk", "shm")[0]
    assert found["thread"] == 3
    # Others make files there too.
    assert (found["disk"] >= 2, found["shm"] >= 1) == (True, True)


def test_memory_is_exact_between_calls() -> None:
    def work(_meter: Meter) -> None:
        block = bytearray(b"x") * (3 * MIB)
        len(block)
        del block

    found, meter = peaks(work, "rss")
    # Pages that the allocator kept take in the first of it.
    assert 2.8 * MIB <= found["rss"] < 3.2 * MIB
    assert meter.exact


def test_memory_that_comes_and_goes_inside_one_call_is_the_kernels_to_tell() -> None:
    big = bytes(8 * MIB)

    def work(_meter: Meter) -> None:
        # A copy of 8 MiB that is gone again when the call returns.
        big.replace(b"\0\0", b"\1").endswith(b"x")

    found, _meter = peaks(work, "rss")
    assert found["rss"] >= 3 * MIB


def test_a_reading_of_another_thread_does_not_take_a_peak_back() -> None:
    """As with the ranks of a world of threads: one that has read 1 is held up, and another reads 2 meanwhile."""
    # Not events: their methods are Python, so the main thread would be traced while it holds the lock of an event that
    # the other thread waits for, and the meter would wait for the other thread.
    compares, has_risen = threading.Lock(), threading.Lock()
    compares.acquire()
    has_risen.acquire()
    count = 1

    class Late(int):
        def __gt__(self, other: int) -> bool:
            if compares.locked():
                compares.release()
            has_risen.acquire(timeout=0.2)
            return int(self) > other

    def read() -> int:
        return Late(count) if threading.current_thread() is other else count

    def work(meter: Meter) -> None:
        nonlocal count
        meter.gauge("count", read)
        other.start()
        compares.acquire()
        count = 2
        len([count])
        count = 0
        has_risen.release()
        other.join()

    other = threading.Thread(target=lambda: len([0]))
    assert peaks(work)[0] == {"gauge:count": 2}


class LiteralMark:
    """Resident memory that does not change, a mark of the kernel's above it, and what a reading costs."""

    def __init__(self, mark: int = 0, cost: Callable[[], None] = lambda: None) -> None:
        self.mark, self.cost = 100 * MIB + mark, cost

    def now(self) -> int:
        self.cost()
        return 100 * MIB

    def read(self) -> int:
        return self.mark

    def reset(self) -> int:
        return 100 * MIB

    def nothing(self) -> None: ...

    open = close = trim = nothing


@pytest.mark.parametrize(("mark", "exact"), [(200 << 10, True), (300 << 10, False)])
def test_readings_at_calls_are_exact_within_a_quarter_megabyte_of_the_kernels_mark(
    mark: int, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peak_meter, "PeakRss", lambda: LiteralMark(mark))
    found, meter = peaks(lambda _meter: None, "rss")
    assert (meter.exact, found["rss"]) == (exact, 0 if exact else mark)


@pytest.mark.parametrize(
    ("naming", "seconds", "traced"), [(0, 5.0, True), (0, 8.0, False), (MIB, 50.0, True), (MIB, 70.0, False)]
)
def test_a_run_is_traced_for_six_seconds_and_for_a_minute_if_its_composition_is_wanted(
    naming: int, seconds: float, traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(tracer, "monotonic", lambda: now)
    monkeypatch.setattr(tracer, "process_time", lambda: now)
    _found, meter = peaks(lambda _meter: None, "fd", naming=naming)
    throttle = meter._tracer.throttle
    throttle.begin()
    now = seconds
    throttle.spend(0, None)
    assert throttle.cut is not traced


@pytest.mark.parametrize(
    ("cost", "calls", "read_at"),
    [
        (1.0, (0.0, 7.5, 8.5, 16.0, 17.0), [0.0, 8.5, 17.0]),
        # The third brings the readings above half a second: no call of a shorter run rests.
        (0.25, (0.0, 0.5, 1.0, 1.5, 2.5, 3.5), [0.0, 0.5, 1.0, 3.5]),
    ],
    ids=["rests", "is_short"],
)
def test_a_reading_for_the_composition_rests_for_eight_times_its_cost(
    monkeypatch: pytest.MonkeyPatch, cost: float, calls: tuple[float, ...], read_at: list[float]
) -> None:
    clock, readings = SleepingClock(monkeypatch), list[float]()

    def read() -> None:
        readings.append(clock.now)
        clock.thread += cost

    monkeypatch.setattr(peak_meter, "PeakRss", lambda: LiteralMark(cost=read))
    meter = Meter(("rss",), 200 * MIB)
    for clock.now in calls:
        meter._read_for_composition(sys._getframe(), None)
    assert readings == read_at


def test_it_gives_everything_back() -> None:
    before = set(os.listdir("/proc/self/fd")), sys.getprofile(), threading.getprofile()  # noqa: PTH208 - numbers
    peaks(lambda _meter: None, "fd", "thread", "process", "rss", "heap", "mmap", "shm", "disk", "block")
    assert (set(os.listdir("/proc/self/fd")), sys.getprofile(), threading.getprofile()) == before  # noqa: PTH208


def test_a_program_that_takes_the_tracer_out_has_no_peak(capfd: pytest.CaptureFixture[str]) -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("there the program's profiler has a place of its own")

    def work(meter: Meter) -> None:
        meter.gauge("seen", 5)
        sys.setprofile(None)
        os.close(os.open(os.devnull, os.O_RDONLY))

    found, meter = peaks(work, "fd", "rss")
    assert set(found) == {"rss"}
    assert not meter.exact
    assert meter.unavailable["fd"].startswith("the test was not traced to its end: the program called sys.setprofile")
    assert not capfd.readouterr().err


def test_what_cannot_be_read_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: PeakRss) -> None:
        raise Unavailable("no such file")

    monkeypatch.setattr(PeakRss, "open", fail)
    found, meter = peaks(lambda _meter: None, "rss", "fd")
    assert found == {"fd": 0}
    assert meter.unavailable == {"rss": "no such file"}


class Uploader:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def add(self) -> None:
        self.parts.append(bytes(range(256)) * 4096)


def named(work: Callable[[], object]) -> Culprit:
    _found, meter = peaks(lambda _meter: work(), "rss", naming=12 * MIB)
    (culprit,) = [one for one in meter.culprits() if one.resource == "rss"]
    assert not tracemalloc.is_tracing()
    return culprit


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    yield
    tracemalloc.stop()


def test_readings_that_other_processes_hold_up_are_no_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = PeakRss.now

    def held_up(mark: PeakRss) -> int:
        time.sleep(0.01)
        return now(mark)

    monkeypatch.setattr(PeakRss, "now", held_up)

    def work() -> None:
        uploader = Uploader()
        for _ in range(16):
            uploader.add()

    culprit = named(work)
    assert culprit.source == "self.parts.append(bytes(range(256)) * 4096)"
    assert culprit.owner is not None
    # Beside load, the peak may be read after `add` has returned.
    assert culprit.owner.name.endswith(("add() local 'self'.parts", "work() local 'uploader'.parts"))


def test_the_variable_may_be_of_a_thread_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[bytes] = []
    # Found through the module, and so by no variable of the thread that fills it.
    monkeypatch.setattr(sys.modules[__name__], "keep", parts.append, raising=False)
    # A busy machine would make a look rest until the thread has ended.
    monkeypatch.setattr(peak_meter, "_REST_FACTOR", 0.0)

    def fill() -> None:
        for _ in range(16):
            globals()["keep"](bytes(range(256)) * 4096)

    def work(parts: list[bytes]) -> int:
        filling = threading.Thread(target=fill)
        filling.start()
        filling.join()
        return len(parts)

    culprit = named(lambda: work(parts))
    assert culprit.source == 'globals()["keep"](bytes(range(256)) * 4096)', culprit.unresolved
    assert culprit.owner is not None
    assert culprit.owner.name.endswith("work() local 'parts'")


def test_what_python_has_not_allocated_is_not_named() -> None:
    import mmap

    def work() -> None:
        memory = mmap.mmap(-1, 16 * MIB)
        for at in range(0, 16 * MIB, 4096):
            memory[at] = 1
            len(memory)
        memory.close()

    culprit = named(work)
    assert (culprit.site, culprit.owner) == (None, None)
    assert culprit.unresolved["site"].startswith("not allocated by Python")


def test_a_line_with_less_than_half_is_named_with_its_share_and_not_as_the_cause() -> None:
    import mmap

    def work(by_python: int) -> None:
        parts = []
        memory = mmap.mmap(-1, 16 * MIB)
        for _ in range(by_python):
            parts.append(bytes(range(256)) * 4096)  # noqa: PERF401 - the line that is sought
        for at in range(0, (16 - by_python) * MIB, 4096):
            memory[at] = 1
            len(memory)
        memory.close()

    culprit = named(lambda: work(4))
    assert culprit.site is None
    assert culprit.unresolved["site"].startswith("no line of Python allocated half of it")
    assert culprit.share is not None
    assert culprit.share.source.startswith("parts.append(bytes(range(256)) * 4096)")
    assert 4 * MIB <= culprit.share.size < 4.1 * MIB
    assert 12 * MIB <= culprit.share.total < 17 * MIB

    culprit = named(lambda: work(12))
    assert culprit.source.startswith("parts.append(bytes(range(256)) * 4096)")
    assert "site" not in culprit.unresolved
    assert culprit.share is not None
    assert culprit.share.where == culprit.where


@pytest.mark.laboratory
def test_memory_that_rises_further_is_looked_into_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first look, memory that was freed since is most of it; in the same function, it then rises to the peak."""
    import mmap

    def work() -> None:
        parts = []
        memory = mmap.mmap(-1, 12 * MIB)
        for at in range(0, 12 * MIB, 4096):
            memory[at] = 1
            len(memory)
        for _ in range(16):
            parts.append(bytes(range(256)) * 4096)  # noqa: PERF401 - the line that is sought
        memory.close()

    monkeypatch.setattr(peak_meter, "_REST_FACTOR", 0.0)
    culprit = named(work)
    assert culprit.source.startswith("parts.append(bytes(range(256)) * 4096)")
    assert culprit.share is not None
    assert culprit.share.size > 12 * MIB


def test_a_look_that_takes_long_delays_none_at_memory_that_rises_further(monkeypatch: pytest.MonkeyPatch) -> None:
    import mmap

    look = Composition.look

    def look_long(composition: Composition, *given: Any) -> None:
        look(composition, *given)
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass

    def work() -> None:
        parts = []
        memory = mmap.mmap(-1, 12 * MIB)
        for at in range(0, 12 * MIB, 4096):
            memory[at] = 1
        for _ in range(8):
            parts.append(bytes(range(256)) * 16384)
            time.sleep(0.05)
        memory.close()

    monkeypatch.setattr(Composition, "look", look_long)
    culprit = named(work)
    assert culprit.source.startswith("parts.append(bytes(range(256)) * 16384)")
    assert culprit.owner is not None
    assert culprit.owner.name.endswith("work() local 'parts'")


def test_memory_that_malloc_could_return_is_no_part_of_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that were freed between others that are still in use stay resident, and no line holds them."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]

    def work() -> None:
        blocks = [libc.malloc(64 << 10) for _ in range(16 * 16)]
        for block in blocks:
            ctypes.memset(block, 1, 64 << 10)
        # Between those that stay there is no room for a part. All parts are more than all blocks, which Python 3.12 and
        # later show the tracer.
        kept = blocks[::16]
        for block in {*blocks} - {*kept}:
            libc.free(block)
        parts = []
        for _ in range(20):
            parts.append(bytes(range(256)) * 4096)  # noqa: PERF401 - the line that is sought
        for block in kept:
            libc.free(block)
        len(parts)

    monkeypatch.setattr(peak_meter, "_REST_FACTOR", 0.0)
    culprit = named(work)
    assert culprit.source.startswith("parts.append(bytes(range(256)) * 4096)")
    assert culprit.share is not None
    assert culprit.share.size > 0.8 * culprit.share.total


def test_what_does_not_come_as_high_again_says_so() -> None:
    culprit = named(lambda: None)
    assert set(culprit.unresolved.values()) == {"it did not rise as high again"}


def test_the_memory_of_a_trace_includes_its_call_stacks() -> None:
    resident = PeakRss()
    resident.open()
    blocks = sys.getallocatedblocks()
    composition = Composition("rss", 8 * MIB)
    kept: list[list[int]] = []

    def fork(depth: int) -> None:
        if depth == 0:
            kept[:] = [[depth]]
            return
        fork(depth - 1)
        fork(depth - 1)

    before = resident.now(), tracemalloc.get_tracemalloc_memory(), tracing_memory(blocks)
    fork(16)
    after = resident.now(), tracemalloc.get_tracemalloc_memory(), tracing_memory(blocks)
    taken, counted_by_python, counted = (end - start for start, end in zip(before, after, strict=True))
    composition.culprit()
    resident.close()
    assert taken > 3 * counted_by_python
    assert 0.5 * taken <= counted <= 1.1 * taken, (taken, counted)
