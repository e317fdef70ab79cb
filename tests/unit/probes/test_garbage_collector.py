from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_leakcheck.probes import clock
from pytest_leakcheck.probes.garbage_collector import CollectorWatch, open_targets
from pytest_leakcheck.probes.processes import LinuxTree
from pytest_leakcheck.probes.runtime_counters import list_tasks

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")  # noqa: PTH112


class Owner:
    """Holds a descriptor, and as long as it is not fixed also itself: then only the collector closes it."""

    def __init__(self, *, cyclic: bool) -> None:
        self.itself = self if cyclic else None
        self.descriptor = os.open("/dev/null", os.O_RDONLY)

    def __del__(self) -> None:
        os.close(self.descriptor)


@contextmanager
def watching() -> Iterator[CollectorWatch]:
    tree = LinuxTree()
    tree.open()
    watch = CollectorWatch(tree.own)
    watch.open()
    try:
        yield watch
    finally:
        watch.close()
        tree.close()


def test_what_an_automatic_collection_closes_is_counted_once() -> None:
    with watching() as watch:
        Owner(cyclic=True)
        # Enough containers to bring on collections of the youngest generation.
        kept = [[] for _ in range(5000)]  # type: ignore[var-annotated]
        assert watch.take_released() == (1, 0, 0)
        assert watch.take_released() == (0, 0, 0)
        Owner(cyclic=False)
        kept.extend([] for _ in range(5000))
        assert watch.take_released() == (0, 0, 0)


def test_its_own_collections_are_the_callers_to_count() -> None:
    with watching() as watch:
        Owner(cyclic=True)
        assert watch.collect()
        assert watch.take_released() == (0, 0, 0)
        assert not watch.collect()


def test_a_finalizer_that_drops_another_cycle_is_followed() -> None:
    class Chain(Owner):
        def __init__(self) -> None:
            super().__init__(cyclic=True)
            self.more = Owner(cyclic=True)

    with watching() as watch:
        before = len(open_targets())
        Chain()
        watch.collect()
        assert len(open_targets()) == before


def test_threads_that_were_told_to_end_are_not_released_by_the_collection_of_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader:
        """Ends its two threads when it is collected."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            threads[0] = 1

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == end_at:
            threads[0] = 1

    threads, pauses = [3], list[float]()
    monkeypatch.setattr(clock, "sleep", pause)
    watch = CollectorWatch(lambda: (0, threads[0]))
    watch.open()
    try:
        watch.note_threads(1)
        # One that is due does not wait.
        end_at, kept = 0, [[] for _ in range(100_000)]  # type: ignore[var-annotated]
        assert (watch.take_released(), pauses) == ((0, 0, 0), [])
        end_at = 3
        gc.collect()
        assert watch.take_released() == (0, 0, 0)
        assert sum(pauses) == pytest.approx(0.0007)
        threads[0], end_at = 3, 0
        pauses.clear()
        Reader()
        gc.collect()
        assert watch.take_released() == (0, 2, 0)
        assert sum(pauses) == pytest.approx(0.0031)
        pauses.clear()
        gc.collect()
        assert (watch.take_released(), pauses) == ((0, 0, 0), [])
    finally:
        watch.close()
    assert len(kept) == 100_000


def test_the_names_of_what_was_released_are_noted_when_asked_for() -> None:
    with watching() as watch:
        Owner(cyclic=True)
        watch.collect()
        assert not watch.released_names
        watch.name_released(True)
        Owner(cyclic=True)
        watch.collect()
        assert watch.released_names == {"/dev/null": 1}


def test_what_the_program_had_frozen_stays_frozen_and_what_not_does_not() -> None:
    # Python 3.12 starts with a few hundred frozen.
    before = gc.get_freeze_count()
    with watching():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() <= before
    try:
        # Garbage that is frozen with the rest does not stay.
        gc.collect()
        gc.freeze()
        frozen = gc.get_freeze_count()
        with watching():
            pass
        assert gc.get_freeze_count() >= frozen - 100
    finally:
        gc.unfreeze()


def test_what_the_program_hides_or_shows_is_seen_without_a_walk_over_frozen_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are more of these with each test of a session: to count them for each test took half of the time."""
    with watching() as watch:
        monkeypatch.delattr(gc, "get_freeze_count")
        assert not watch.shows_old_objects()
        assert not watch.hides_objects()
        gc.unfreeze()
        assert watch.shows_old_objects()
        gc.freeze()
        assert watch.hides_objects()
        assert not watch.shows_old_objects()
        monkeypatch.undo()


def test_tasks_that_were_created_before_it_thaws_and_freezes_again_are_still_listed() -> None:
    loop = asyncio.new_event_loop()
    with watching() as watch:
        task = loop.create_task(asyncio.sleep(3600))
        watch.thaw()
        watch.refreeze()
        assert task in list_tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()


def test_garbage_that_was_alive_when_it_was_frozen_is_found_by_thawing() -> None:
    held = [Owner(cyclic=True)]
    before = len(open_targets())
    with watching() as watch:
        now = len(open_targets())
        held.clear()
        assert not watch.collect()
        assert len(open_targets()) == now
        watch.thaw()
        assert len(open_targets()) == now - 1
        watch.refreeze()
        assert gc.get_freeze_count() > 0
    assert len(open_targets()) == before - 1
