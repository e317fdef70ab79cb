from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pytest_leakcheck.probes import clock
from pytest_leakcheck.runner.sampler import Sampler

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")
ROWS = 2000
WARM_UP = 1100


# Opening and closing one walks every object of the whole suite, so it is shared; each test reads a start of its own, in
# its body, since pytest makes objects of its own between a fixture and the test.
@pytest.fixture(scope="module")
def sampler() -> Iterator[Sampler]:
    sampler = Sampler(["object", "heap"], {}, WARM_UP + ROWS + 10)
    assert sampler.samples.all_series() == ()
    yield sampler
    sampler.close()


def test_two_thousand_rows_retain_no_object_no_heap_and_no_block(sampler: Sampler) -> None:
    sampler.start()
    for _ in range(WARM_UP):
        sampler.read()
    # Small blocks of the interpreter are in no counter of the sampler: a number kept per row would show here alone.
    before = sys.getallocatedblocks()
    for _ in range(ROWS):
        sampler.read()
    # The number of the last row, and the like: a few, whatever the number of rows.
    assert sys.getallocatedblocks() - before <= ROWS // 10
    for resource in ("fd", "thread", "process", "object", "heap"):
        assert set(sampler.samples.series(resource).readings[WARM_UP:]) == {sampler.samples.level(resource)}, resource
    assert sampler.samples.n == WARM_UP + ROWS


def test_rows_are_read_after_the_start_and_a_new_start_forgets_them(sampler: Sampler) -> None:
    sampler.start()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    sampler.read()
    assert (sampler.samples.n, sampler.samples.above_start("fd")) == (1, 1)
    sampler.start()
    assert (sampler.samples.n, sampler.samples.above_start("fd")) == (0, 0)
    os.close(descriptor)
    sampler.read()
    assert sampler.samples.above_start("fd") == -1


def test_what_the_harness_makes_between_rows_can_be_taken_off(sampler: Sampler) -> None:
    sampler.start()
    sampler.read()
    work = [[] for _ in range(50)]  # type: ignore[var-annotated]
    sampler.subtract_own_work()
    sampler.read()
    assert sampler.samples.above_start("object") == 0
    # What comes after it counts as ever.
    more = [[] for _ in range(50)]  # type: ignore[var-annotated]
    sampler.read()
    assert sampler.samples.above_start("object") == 51
    assert len(work) == len(more)


def test_the_row_after_own_work_is_read_anew(sampler: Sampler) -> None:
    """An expensive counter is also read for the harness's own part; the next row must not reuse that reading."""
    sampler.start()
    kept = []
    for row in range(1, 31):
        kept.append(bytearray(100_000))
        sampler.read(row % 10 == 0)
        if row % 10 == 0:
            sampler.subtract_own_work()
    x = sampler.samples.series("heap").readings
    moves = [after - before for before, after in itertools.pairwise(x)]
    assert all(100_000 <= move <= 110_000 for move in moves), moves
    assert len(kept) == 30


def test_a_level_is_whole_in_a_row_in_which_its_counter_was_not_read(sampler: Sampler) -> None:
    sampler.start()
    first = sampler.samples.level("heap")
    assert first > 0
    for _ in range(10):
        sampler.read(False)
        assert sampler.samples.level("heap") == first
        assert sampler.samples.above_start("heap") == 0


def test_nobody_is_waited_for_where_nobody_could_close_it(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    if sampler.instruments.tree.read()[1:] != (1, 0):
        pytest.skip("other threads run in this process")
    sampler.start()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    sampler.read()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "sleep", lambda _seconds: pytest.fail("waited"))
        assert not sampler.settling.settle()
    assert sampler.samples.above_start("fd") == 1
    os.close(descriptor)


def test_another_thread_is_given_the_time_to_close_it(sampler: Sampler) -> None:
    may_close = threading.Event()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    sampler.start()
    descriptor = os.open(os.devnull, os.O_RDONLY)

    def close_later() -> None:
        may_close.wait()
        time.sleep(0.02)
        os.close(descriptor)

    thread = threading.Thread(target=close_later)
    thread.start()
    sampler.read()
    assert (sampler.samples.above_start("fd"), sampler.samples.above_start("thread")) == (1, 1)
    may_close.set()
    assert sampler.settling.settle()
    assert (sampler.samples.above_start("fd"), sampler.samples.above_start("thread")) == (0, 0)
    thread.join()
