"""Resident memory under a budget of its own: that of children counts, unless they come or go."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.config.budget import Budget, default_budget
from pytest_leakcheck.runner.processes.children_peak import ChildrenPeak
from pytest_leakcheck.runner.processes.supervisor import Board, BoardView
from pytest_leakcheck.runner.repetition import measure_block
from pytest_leakcheck.runner.sampler import Sampler
from repeats import repeat

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
GROWS = """if True:
    import sys
    kept = []
    for line in sys.stdin:
        kept.append(bytearray(b"1") * (1 << 20))
        print(flush=True)
"""


@contextlib.contextmanager
def growing_child() -> Iterator[Callable[[], object]]:
    """A child that keeps a megabyte more at each call."""
    command = [sys.executable, "-S", "-c", GROWS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        wants, answers = child.stdin, child.stdout

        def grow() -> None:
            print(file=wants, flush=True)
            answers.readline()

        grow()
        yield grow
        wants.close()


def test_memory_of_children_that_live_through_the_series_counts_and_that_of_others_makes_no_step() -> None:
    sampler = Sampler(["rss"], {}, 10)
    megabyte = 1 << 20
    try:
        with growing_child() as grow, growing_child() as grow_and_end:
            sampler.start()
            for _ in range(3):
                grow()
                grow_and_end()
                sampler.read()
            assert len(sampler.samples.grown_children()) == 2
            assert 6 * megabyte <= sampler.samples.above_start("rss") <= 7 * megabyte
            with growing_child() as grow_late:
                grow_late()
                sampler.read()
                late = sampler.samples.above_start("rss")
            assert late <= 7 * megabyte
        # Both have ended: none of what they kept is left in any row.
        sampler.read()
        assert sampler.samples.grown_children() == []
        assert max(sampler.samples.series("rss").readings) - sampler.samples.series("rss").readings[0] < megabyte
    finally:
        sampler.close()


def test_without_a_budget_that_names_it_no_memory_of_children_is_read() -> None:
    sampler = Sampler(["rss"], {}, 10)
    try:
        assert sampler.instruments.resident is not None
        sampler.instruments.resident.named = False
        with growing_child() as grow:
            sampler.start()
            grow()
            sampler.read()
            assert sampler.samples.children() == {}
    finally:
        sampler.close()


def test_an_ok_without_a_budget_says_whose_memory_is_not_counted() -> None:
    with growing_child() as grow:
        (beside,) = repeat(grow, default_budget("rss")).verdicts
    assert (beside.outcome, beside.floor) == ("ok", None)
    assert re.search(r"\b(1 child process: its|\d child processes: their) memory is not counted$", beside.reason)


def test_what_a_child_keeps_is_over_a_budget_of_a_block_and_said_to_be_there() -> None:
    with growing_child() as grow:
        with measure_block("t", (Budget("rss", 1 << 20),), {}) as finished:
            for _ in range(4):
                grow()
        (verdict,) = finished().verdicts
    assert verdict.outcome == "over_budget"
    assert re.search(r"; in child \d+: .*python", verdict.reason)


def test_the_peak_of_a_child_is_counted_above_what_it_had_before_the_body(tmp_path: Path) -> None:
    megabyte = 1 << 20
    (tmp_path / "board").write_bytes(bytes(Board.SIZE))
    board, view, children = Board(tmp_path / "board"), BoardView(tmp_path / "board"), ChildrenPeak()

    def look(step: int) -> int:
        board.iteration = step
        # A sample is taken at most every 20 ms.
        time.sleep(0.03)
        children.look(os.getpid(), view)
        return children.peak

    with growing_child() as grow:
        assert look(1) == 0
        assert look(2) < megabyte
        for _ in range(3):
            grow()
        assert 3 * megabyte <= look(2) < 4 * megabyte
        with growing_child():
            # Of one that is started in the body, the interpreter counts too.
            assert look(2) > 8 * megabyte
    board.close()
    view.close()
