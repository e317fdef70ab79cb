"""The leaky loader under a ceiling of 128 descriptors: in this process, and in a worker of torch's DataLoader."""

from __future__ import annotations

import re

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.laboratory

REACHED = r"over (\d+) iterations, then .*Too many open files"


def videos_of(size: str) -> set[str]:
    """What the names of the nine videos have in common, by kind: each of the three cameras has another seed."""
    return {f"{kind}-libx264-{size}-gop10-seed*.mp4" for kind in ("rgb", "depth", "segmentation")}


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("in_process"))
    incident = ("--pyargs", "leakcheck_incidents.pyav_loader")
    return project.run(*incident, "-k", "leaky and not CollectorOn", "--leakcheck-ceiling=fd=128")


@pytest.mark.parametrize("name", ["TestCollectorOff", "TestLoadersRetained"])
def test_in_the_process_it_runs_out_and_the_failed_line_and_the_videos_are_named(
    in_process: Outcome, name: str
) -> None:
    found = next(one for one in in_process.findings if name in one["test"] and one["resource"] == "fd")
    assert (found["verdict"], found["slope"]) == ("leak", 9)
    reached = re.search(REACHED, found["reason"])
    assert reached
    # Some 35 are open beforehand, and 9 come in each.
    assert 6 <= int(reached[1]) <= 12
    assert found["site"]["file"].endswith("pyav_loader/leaky.py")
    assert found["culprit"]["ran_out"]["file"].endswith("pyav_loader/leaky.py")
    videos = [one for one in found["held"] if one["what"].endswith(".mp4")]
    assert {one["what"].rpartition("/")[2] for one in videos} == videos_of("224x224x60")


def test_in_a_worker_it_runs_out_and_the_line_is_read_from_what_the_worker_sent(project: Project) -> None:
    project.copy("arms_in_workers_under_ceiling.py", "test_workers.py")
    ran = project.run("-p", "leakcheck_incidents.material")
    found = ran.finding("test_switch[leaky]")
    assert found["verdict"] == "leak"
    assert 7 <= found["slope"] <= 11
    reached = re.search(REACHED, found["reason"])
    assert reached
    # The worker's own are counted: about 20 beforehand, and one switch ahead of what was asked for.
    assert 4 <= int(reached[1]) <= 10
    assert found["site"]["file"].endswith("pyav_loader/leaky.py")
    assert found["site"]["function"] == "VideoLoader.__init__"
    videos = [one for one in found["held"] if one["what"].endswith(".mp4")]
    assert {one["what"].rpartition("/")[2] for one in videos} == videos_of("64x64x60")
    assert {one["note"] for one in videos} == {"in child pt_data_worker (forked)"}
    fixed = [one for one in ran.findings if "[fixed]" in one["test"]]
    assert [one["verdict"] for one in fixed] == ["ok"]
