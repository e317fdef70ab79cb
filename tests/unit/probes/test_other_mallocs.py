"""jemalloc and tcmalloc are read by their own statistics, if these count what malloc gives."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.native_heap import Heap, is_quiet, open_readings, other_allocator

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
