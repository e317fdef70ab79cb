from __future__ import annotations

import os
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.model.recording import MOST_CORRECTIONS, Correction
from pytest_leakcheck.runner.readings import Samples
from pytest_leakcheck.runner.sampler import Sampler


@pytest.fixture
def samples() -> Samples:
    """Three rows of descriptors: 5, 6, 9."""
    samples = Samples(10)
    samples.columns["fd"] = samples.new_column()
    samples.columns["fd"][:3] = array("q", (5, 6, 9))
    samples.restart()
    samples.n = 2
    return samples


@pytest.fixture
def sampler() -> Iterator[Sampler]:
    sampler = Sampler(["object", "disk", "shm"], {}, 60)
    sampler.start()
    yield sampler
    sampler.close()


def test_a_change_of_rows_is_noted(samples: Samples) -> None:
    samples.correct("fd", range(1, 3), -1, "foreign")
    samples.correct_last("fd", 6, "ended")
    assert samples.series("fd").readings == (5, 5, 6)
    assert samples.corrections() == (Correction("fd", -1, 1, 2, "foreign"), Correction("fd", -2, 2, 2, "ended"))


def test_what_changes_nothing_is_not_noted(samples: Samples) -> None:
    samples.correct("fd", range(3, 3), -1, "foreign")
    samples.correct_last("fd", 9, "ended")
    assert samples.series("fd").readings == (5, 6, 9)
    assert samples.corrections() == ()


def test_a_new_start_forgets_the_corrections(samples: Samples) -> None:
    samples.correct_last("fd", 6, "ended")
    samples.restart()
    assert (samples.n, samples.corrections()) == (0, ())


def test_the_number_of_notes_is_bounded(samples: Samples) -> None:
    for _ in range(MOST_CORRECTIONS + 5):
        samples.correct("fd", range(1), 1, "put_back")
    assert len(samples.corrections()) == MOST_CORRECTIONS
    assert samples.series("fd").readings[0] == 5 + MOST_CORRECTIONS + 5


def test_the_work_of_the_harness_is_noted_for_later_rows(sampler: Sampler) -> None:
    sampler.read()
    work = [[] for _ in range(50)]  # type: ignore[var-annotated]
    sampler.subtract_own_work()
    (noted,) = (one for one in sampler.samples.corrections() if one.resource == "object")
    # The list itself is an object as well.
    assert noted == Correction("object", -(len(work) + 1), 2, None, "harness")


def test_a_note_is_no_object_and_no_block(sampler: Sampler) -> None:
    samples = sampler.samples
    sampler.read()
    blocks = array("q", (0, 0))
    for at in (0, 1):
        for _ in range(90):
            samples.correct("fd", range(1, 2), 1_000, "put_back")
        blocks[at] = sys.getallocatedblocks()
    assert blocks[1] - blocks[0] < 10


def test_a_thread_that_ends_late_is_noted(sampler: Sampler) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    sampler.read()
    threading.Timer(0.05, ended.set).start()
    assert sampler.settling.settle()
    thread.join()
    by = {one.resource: one.by for one in sampler.samples.corrections() if one.why == "ended"}
    assert by["thread"] < 0
    sampler.settling.put_back()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs the folder of shared memory")
def test_files_of_other_programs_are_noted(sampler: Sampler) -> None:
    name = f"/dev/shm/leakcheck-{os.getpid()}"
    subprocess.run(["touch", name], check=True)
    try:
        sampler.read()
        assert sampler.settling.correct_folder("shm", set_aside=True)
        assert Correction("shm", -1, 1, 1, "foreign") in sampler.samples.corrections()
        assert sampler.samples.above_start("shm") == 0
    finally:
        Path(name).unlink()
