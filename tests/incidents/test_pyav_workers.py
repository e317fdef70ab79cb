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
TESTS = ("-p", "leakcheck_incidents.material", "--pyargs", INCIDENT.tests)

# A separate training run with a lowered limit of descriptors; at the end it prints what happened.
TRAINING = """
import resource, sys
from importlib import import_module
from pathlib import Path
from leakcheck_incidents.synthetic.video import Clip, write_clip
from leakcheck_incidents.pyav_loader.chunks import Recording
from leakcheck_incidents.pyav_workers.workers import Parent, Setting, Switches

name, start, switches = sys.argv[1], sys.argv[2], int(sys.argv[3])

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    path = write_clip(Clip(width=64, height=64, frames=20, gop=10), Path("clip.mp4"))
    recording = Recording({(f"camera{number}", "rgb"): path for number in range(9)}, frames=20, gop=10)
    setting = Setting(start, prefetch=2, collector=False)
    parent = Parent(Switches(import_module(f"leakcheck_incidents.pyav_loader.{name}"), recording, setting), setting)
    own = len(list(Path("/proc/self/fd").iterdir()))
    taken = 0
    try:
        while taken < switches:
            parent.take()
            taken += 1
    except RuntimeError as error:
        print(error)
    print("taken:", taken)
    print("more of the parent's own:", len(list(Path("/proc/self/fd").iterdir())) - own)
    parent.close()
"""


def train(project: Project, *arguments: str) -> str:
    script = project.write("training.py", TRAINING)
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    return subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=True, timeout=600).stdout


def test_both_arms_come_out_as_they_must(tmp_path: Path) -> None:
    done = shell("repro", INCIDENT.name, folder=tmp_path, limit=900)
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "leaky arm: 4 of 4 as expected" in said
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


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_without_descriptors_left_is_told_to_the_parent(project: Project, start: str) -> None:
    said = train(project, "leaky", start, "400")
    assert re.search(r"Caught OSError in DataLoader worker process [01]\.", said), said
    assert "[Errno 24] Too many open files" in said
    # Two workers of 256 descriptors each, of which some 20 to 40 are torch's; nine per switch.
    taken = int(re.search(r"taken: (\d+)", said)[1])  # type: ignore[index]
    assert 2 * (256 - 60) // 9 - 2 * 2 - 2 <= taken <= 2 * 256 // 9
    assert "more of the parent's own: 0" in said


def test_the_fixed_loader_lives_on(project: Project) -> None:
    said = train(project, "fixed", "fork", "400")
    assert "taken: 400" in said
    assert "more of the parent's own: 0" in said
