"""Ranks that are Ray actors: judged as processes are, and lost ones are named within seconds. Nothing is left."""

from __future__ import annotations

import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from on_ray import NEEDS_RAY
from processes_left import left_over, never_removed
from projects import Outcome, Project

pytestmark = NEEDS_RAY
# So long each step of a world may take, in seconds; and so long it may take to say so.
STEP = 5
REPORTED = 10


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("rollouts"))
    project.copy("rollouts.py")
    home = project.folder / "home"
    home.mkdir()
    before = set(Path("/dev/shm").iterdir())
    # With room for the paths of Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        ran = project.run(TMPDIR=temporary, HOME=str(home))
        assert [one.name for one in Path(temporary).iterdir() if not one.name.startswith("pytest-of-")] == []
    assert not never_removed(set(Path("/dev/shm").iterdir()) - before)
    assert [*home.iterdir()] == []
    return ran


def test_a_cap_per_rank_that_was_meant_for_all_is_red(rollouts: Outcome) -> None:
    found = rollouts.finding("test_rollouts[leaky]", "gauge:in_flight")
    assert ([point["peak"] for point in found["points"]], found["verdict"]) == ([64, 128, 256], "over_budget")
    assert re.search(r"^ +4 +256 +█{24}  64 \+ 64 \+ 64 \+ 64$", rollouts.text, re.MULTILINE)
    assert "the test's body, in a Ray actor per rank" in rollouts.one_line
    peaks = [point["peak"] for point in rollouts.finding("test_rollouts[leaky]", "rss")["points"]]
    assert 3.9 < peaks[2] / peaks[0] < 4.1


def test_a_cap_that_is_shared_is_silent(rollouts: Outcome) -> None:
    assert rollouts.last_line == "1 failed, 2 passed", rollouts.text
    found = rollouts.finding("test_rollouts[fixed]", "gauge:in_flight")
    assert ([point["peak"] for point in found["points"]], found["verdict"]) == ([64, 64, 64], "ok")
    points = next(one for test, one in rollouts.scaled.items() if "fixed" in test)["points"]
    nodes = [[rank["environment"]["node"] for rank in point["recordings"]] for point in points]
    assert [len(ranks) for ranks in nodes] == [1, 2, 4]
    assert len({node for ranks in nodes for node in ranks}) == 1


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    project = Project(tmp_path_factory.mktemp("lost"))
    project.copy("lost.py")
    project.write(
        "conftest.py",
        """
        import time

        def pytest_runtest_logreport(report):
            if report.when == "call" and "[" in report.nodeid:
                act = report.nodeid.partition("[")[2].removesuffix("]")
                with open(f"reported-{act}", "w") as file:
                    file.write(str(time.time()))
        """,
    )
    return project.run(f"--leakcheck-max-time={STEP}"), project.folder


def seconds_until_reported(folder: Path, act: str) -> float:
    return float((folder / f"reported-{act}").read_text()) - float((folder / f"began-{act}").read_text())


def test_a_rank_that_is_killed_is_named(lost: tuple[Outcome, Path]) -> None:
    ran, folder = lost
    reason = ran.finding("test_rank[is_killed]", "rss")["reason"]
    assert re.fullmatch(
        r"rank 1 of 2 died on node [0-9a-f]{12} \([0-9.]+\) at world_size=2, before the end of the test", reason
    )
    # What Ray says of it.
    assert "Ray on rank 1 of 2: ActorDiedError: The actor died unexpectedly" in ran.text
    assert "Worker exit type: SYSTEM_ERROR" in ran.text
    assert seconds_until_reported(folder, "is_killed") < REPORTED


def test_a_rank_that_hangs_is_named_with_its_stack(lost: tuple[Outcome, Path]) -> None:
    ran, folder = lost
    reason = f"hung at world_size=2: rank 1 of 2 made no progress for {STEP} s"
    assert ran.finding("test_rank[hangs]", "rss")["reason"] == reason
    assert re.search(r"stack of rank 1.*in test_rank", ran.text, re.DOTALL)
    assert seconds_until_reported(folder, "hangs") < STEP + REPORTED


def test_a_rank_that_raises_fails_the_test_with_its_own_traceback(lost: tuple[Outcome, Path]) -> None:
    ran, _folder = lost
    assert "ValueError: invalid literal for int() with base 10: 'rank one is broken'" in ran.one_line
    assert "failed in a separate process at world_size=2, rank 1 of 2" in ran.text
    assert ("test_rank[raises]", "rss") not in ran.verdicts


def test_lost_ranks_leave_nothing(lost: tuple[Outcome, Path]) -> None:
    ran, folder = lost
    assert ran.last_line == "3 failed, 1 passed", ran.text
    assert len((folder / "pids").read_text().split()) == 6
    assert not left_over(folder)


# How often sessions start and end a cluster of their own, one after the other.
RUNS = 10


def made(temporary: str) -> dict[str, list[str]]:
    """What there is of the sessions' clusters, whose processes, sockets and files name their folder."""
    commands = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    sockets = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    return {
        "processes": [one for one in commands if temporary in one],
        "sockets": [one for one in sockets if temporary in one],
        "folders": [one.name for one in Path(temporary).iterdir() if not one.name.startswith("pytest-of-")],
        "segments": [one.name for one in Path("/dev/shm").iterdir() if "ray" in one.name or "plasma" in one.name],
    }


@pytest.mark.laboratory
def test_ten_runs_leave_nothing(project: Project) -> None:
    project.copy("passes.py")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        before, seen = made(temporary), set()
        for _ in range(RUNS):
            with ThreadPoolExecutor(1) as threads:
                running = threads.submit(project.run, OF_THE_SESSION="yes", TMPDIR=temporary)
                while not running.done():
                    seen |= {kind for kind, found in made(temporary).items() if found}
                    time.sleep(1)
            assert running.result().last_line == "1 passed", running.result().text
            deadline = time.monotonic() + 60
            while made(temporary) != before and time.monotonic() < deadline:
                time.sleep(0.1)
            assert made(temporary) == before
    # What is to be gone was there. Ray's plasma has no name in /dev/shm.
    assert seen == {"processes", "sockets", "folders"}
