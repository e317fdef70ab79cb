"""Incident 2 in workers: the children's descriptors are seen, and the parent learns when a worker runs out of them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.pyav_loader import leaky
from projects import Project
from shell import shell

pytestmark = pytest.mark.laboratory

INCIDENT = INCIDENTS["pyav_workers"]
TESTS = ("--pyargs", INCIDENT.tests)


# A worker that has no descriptor left to send a tensor.
FULL = """
import multiprocessing, resource, sys
from contextlib import suppress
from pathlib import Path
import av, torch
from torch.utils.data import DataLoader, IterableDataset
from leakcheck_incidents.synthetic.video import Clip, write_clip

class Full(IterableDataset):
    def __iter__(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        kept = []
        with suppress(OSError):
            while True:
                kept.append(av.open("clip.mp4"))
        while True:
            yield torch.zeros(9)

torch.multiprocessing.set_sharing_strategy(sys.argv[1])
write_clip(Clip(width=64, height=64, frames=1), Path("clip.mp4"))
try:
    next(iter(DataLoader(Full(), batch_size=None, num_workers=1, timeout=10)))
except RuntimeError as error:
    print(len(multiprocessing.active_children()), error)
"""


def train(project: Project, *arguments: str) -> str:
    script = project.copy("program_that_trains.py", "training.py")
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    return subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=True, timeout=600).stdout


def test_both_arms_come_out_as_they_must(tmp_path: Path) -> None:
    done = shell("repro", INCIDENT.name, "--arm", "all", folder=tmp_path, limit=1800)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "leaky arm: 4 of 4 as expected" in said
    assert "published arm: 2 of 2 as expected" in said
    assert "fixed arm: 12 of 12 as expected" in said
    assert said.count("fd leak, 9 per switch") == 2
    # The line in the workers, forked and spawned.
    (line,) = [number for number, text in enumerate(inspect.getsource(leaky).splitlines(), 1) if "av.open(" in text]
    assert said.count(f"  opened       pyav_loader/leaky.py:{line} in VideoLoader.__init__()\n") == 2, said
    assert said.count("in 2 child processes, such as pt_data_worker\n") == 2, said


def test_what_is_held_is_told_with_its_worker(project: Project) -> None:
    outcome = project.run(*TESTS, "-k", "leaky-spawn-prefetch5-gc_off")
    finding = outcome.finding("gc_off]")
    assert finding["verdict"] == "leak", outcome.text
    assert finding["site"]["file"].endswith("pyav_loader/leaky.py"), outcome.text
    held = finding["held"]
    assert held
    assert all(one["what"].endswith(".mp4") for one in held), held
    assert all(one["note"].startswith("in child ") and "spawn_main" in one["note"] for one in held), held


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("fork", 4), ("spawn", 2)])
def test_a_worker_without_descriptors_left_is_told_to_the_parent(project: Project, start: str, workers: int) -> None:
    said = train(project, "leaky", start, str(workers), "1000")
    assert re.search(r"Caught OSError in DataLoader worker process \d\.", said), said
    assert "[Errno 24] Too many open files" in said
    # Exactly: each worker has its own limit, so that with twice as many the run lasts nearly twice as long.
    foretold = int(re.search(r"foretold: (\d+)", said)[1])  # type: ignore[index]
    assert 25 * workers < foretold < 28 * workers
    assert f"taken: {foretold}\n" in said, said
    assert "more of the parent's own: 0" in said


def test_the_fixed_loader_lives_on(project: Project) -> None:
    said = train(project, "fixed", "fork", "2", "400")
    assert "taken: 400" in said
    assert "more of the parent's own: 0" in said


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_a_worker_that_cannot_send_a_tensor_drops_it_and_the_parent_waits(project: Project, strategy: str) -> None:
    script = project.write("full.py", FULL)
    command = [sys.executable, "-W", "ignore", str(script), strategy]
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=True, timeout=300)
    # The worker lives on. Without `timeout` the parent would wait for ever; nothing tells it why.
    assert done.stdout == "1 DataLoader timed out after 10 seconds\n"
    assert "Too many open files" in done.stderr
