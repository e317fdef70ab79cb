"""Tests under a ceiling: what takes hours comes in seconds, and is told as what it is, with its iteration, slope and line."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from projects import Outcome, Project
from pytest_leakcheck.probes.base import Unavailable
from pytest_leakcheck.probes.cgroups import MemoryGroup

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")

TESTS = """
    import os
    import pytest
    KEPT = []

    @pytest.mark.leakcheck_ceiling(fd=256)
    def test_descriptors():
        for _ in range(9):
            KEPT.append(open(__file__))

    @pytest.mark.leakcheck_ceiling(fd=256)
    def test_fixed():
        for _ in range(9):
            open(__file__).close()

    runs = []

    @pytest.mark.leakcheck_ceiling(fd=64)
    def test_needs_more():
        runs.append(1)
        files = [open(__file__) for _ in range(10 if len(runs) < 6 else 80)]
        for file in files:
            file.close()

    @pytest.mark.fd_budget(0)
    @pytest.mark.leakcheck_ceiling(rss="300 MiB")
    def test_memory():
        KEPT.append(bytearray(8 << 20))

    @pytest.mark.rss_budget("1 KiB")
    @pytest.mark.leakcheck_ceiling(rss="80 MiB")
    @pytest.mark.parametrize("blocks", [82, 84])
    def test_small_blocks(blocks):
        KEPT.append([bytearray(1000) for _ in range(blocks)])

    @pytest.mark.leakcheck_ceiling(rss="1 MiB")
    def test_too_low():
        pass

    @pytest.mark.leakcheck_ceiling(fd=256)
    def test_steps(leakcheck):
        for step in leakcheck.steps(fd=0):
            KEPT.append(open(__file__))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("ceilings"))
    project.write("test_it.py", TESTS)
    return project.run("--leakcheck-summary=all", "-rs")


def test_descriptors_run_out_in_the_iteration_that_is_told_and_the_line_is_named(ran: Outcome) -> None:
    found = ran.finding("test_descriptors")
    assert (found["verdict"], found["slope"]) == ("leak", 9)
    match = re.search(
        r"iteration (\d+) failed under the ceiling of 256 descriptors: OSError: \[Errno 24\]", found["reason"]
    )
    assert match
    # About 40 are open beforehand and 9 come in each. To name the line, up to 25 iterations are run without the limit.
    assert 22 <= int(match[1]) <= 46
    # The call in the line is known from Python 3.11 on.
    assert (found["site"]["function"], found["site"]["call"]) in (
        ("test_descriptors", "open()"),
        ("test_descriptors", ""),
    )
    assert found["owner"]["name"].endswith("KEPT")
    assert found["culprit"]["ran_out"]["function"] == "test_descriptors"
    assert "this process reaches its limit of 256 descriptors (ulimit -n)" in ran.text


def test_the_fixed_one_is_green_and_says_how_near_it_came(ran: Outcome) -> None:
    found = ran.finding("test_fixed")
    assert found["verdict"] == "ok"
    assert re.fullmatch(r"highest level after an iteration: \d+, under a ceiling of 256 descriptors", found["reason"])


def test_a_test_that_needs_more_than_the_ceiling_by_itself_is_over_budget(ran: Outcome) -> None:
    found = ran.finding("test_needs_more")
    assert found["verdict"] == "over_budget"
    assert (
        "iteration 6 failed under the ceiling of 64 descriptors, before growth was detected: OSError" in found["reason"]
    )
    assert found["culprit"]["ran_out"]["function"].endswith(("test_needs_more", "<listcomp>"))


def test_memory_runs_out_as_a_memory_error(ran: Outcome) -> None:
    found = ran.finding("test_memory", "rss")
    assert found["verdict"] == "leak"
    assert abs(found["slope"] - (8 << 20)) < 1 << 18
    match = re.search(r"iteration (\d+) failed under the ceiling of 300 MiB: MemoryError", found["reason"])
    assert match
    assert 20 <= int(match[1]) <= 50
    assert found["owner"]["name"].endswith("KEPT")
    assert ran.verdicts["test_memory", "fd"] == "ok"


@pytest.mark.parametrize("blocks", [82, 84])
def test_memory_runs_out_in_the_test_and_not_in_pytest_or_the_measurement(ran: Outcome, blocks: int) -> None:
    # Small blocks leave no room for the work between two iterations, which needs small blocks, too.
    found = ran.finding(f"test_small_blocks[{blocks}]", "rss")
    assert re.search(r"iteration \d+ failed under the ceiling of 80.0 MiB: MemoryError", found["reason"])
    assert found["culprit"]["ran_out"]["function"].startswith("test_small_blocks")


def test_a_ceiling_that_cannot_be_set_is_never_green(ran: Outcome) -> None:
    assert [one["verdict"] for one in ran.findings if one["test"].endswith("test_too_low")] == ["unavailable"]
    assert "SKIPPED" in ran.text
    assert "its ceiling cannot be set: this process has" in ran.text


def test_a_loop_inside_a_test_runs_under_it_too(ran: Outcome) -> None:
    assert ran.verdicts["test_steps", "fd"] == "leak"


def test_each_ran_in_a_process_of_its_own_and_the_session_keeps_its_limits(ran: Outcome) -> None:
    # Were the limits the session's, nothing after the first would have had a descriptor left.
    assert "--leakcheck-isolate" in ran.text
    assert ran.status == 1


@pytest.mark.laboratory
def test_the_kernel_kills_and_what_led_there_is_still_told(project: Project) -> None:
    try:
        MemoryGroup.make(64 << 20).remove()
    except Unavailable as error:
        pytest.skip(f"no cgroup of its own: {error}")
    project.write(
        "test_oom.py",
        """
        import pytest
        KEPT = []

        @pytest.mark.leakcheck_ceiling(rss="200 MiB", by="cgroup")
        def test_killed():
            KEPT.append(bytearray(b"x" * (2 << 20)))

        def test_after():
            pass
        """,
    )
    ran = project.run()
    found = ran.finding("test_killed", "rss")
    assert found["verdict"] == "leak"
    assert abs(found["slope"] - (2 << 20)) < 1 << 18
    ended = r"then killed by the kernel \(out of memory\) in iteration \d+, under a ceiling of rss 200 MiB"
    assert re.search(ended, found["reason"])
    assert found["site"]["function"] == "test_killed"
    assert found["owner"]["name"].endswith("KEPT")
    assert ran.last_line == "1 failed, 1 passed"
    left = [path for path in Path("/sys/fs/cgroup").rglob("leakcheck-*") if path.is_dir()]
    assert left == []


DEVICE = """
    import pytest
    import torch

    KEPT = []

    @pytest.fixture(autouse=True)
    def on_device(simulated_device):
        with simulated_device.charging():
            yield

    @pytest.mark.vram_budget(0)
    @pytest.mark.leakcheck_ceiling(vram="256 MiB")
    def test_leaky():
        KEPT.append(torch.zeros(1024, 1024))

    @pytest.mark.vram_budget(0, peak="8 MiB")
    @pytest.mark.leakcheck_ceiling(vram="256 MiB")
    def test_fixed():
        torch.zeros(1024, 1024)

    @pytest.mark.vram_budget(0)
    @pytest.mark.leakcheck_ceiling(vram="8 MiB")
    def test_too_large():
        torch.zeros(3, 1024, 1024)
"""


@pytest.mark.laboratory
def test_a_simulated_device_runs_out_of_its_capacity_and_every_line_says_simulated(project: Project) -> None:
    project.write("test_device.py", DEVICE)
    ran = project.run("-p", "leakcheck_incidents.simulated", "--leakcheck-summary=all")
    found = ran.finding("test_leaky", "vram")
    assert (found["verdict"], found["kind"], found["slope"]) == ("leak", "simulated", 4 << 20)
    failed = r"iteration (\d+) failed under the ceiling of 256 MiB: DeviceOutOfMemory: CUDA out of memory \(simulated\)"
    match = re.search(failed, found["reason"])
    assert match
    # Segments of 20 MiB hold five of them.
    assert 55 <= int(match[1]) <= 68
    assert found["site"]["call"] == "zeros()" or found["site"]["function"] == "test_leaky"
    assert found["owner"]["name"].endswith("KEPT")
    assert ran.verdicts["test_fixed", "vram"] == "ok"
    # It fails before anything was seen to grow.
    large = ran.finding("test_too_large", "vram")
    assert (large["verdict"], large["kind"]) == ("over_budget", "simulated")
    told = [line for line in ran.text.splitlines() if re.search(r"\bvram\b", line) and "::" not in line]
    told = [line for line in told if not re.match(r"\s+(finding|advice) |.*--leakcheck", line)]
    assert [line for line in told if "simulated" not in line] == []


def test_the_command_line_sets_a_ceiling_for_every_measured_test(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest
        KEPT = []

        @pytest.mark.fd_budget(0)
        def test_leaky():
            KEPT.append(open(__file__))

        def test_not_measured():
            KEPT.append(open(__file__))
        """,
    )
    ran = project.run("--leakcheck-ceiling=fd=128")
    assert "failed under the ceiling of 128 descriptors" in ran.finding("test_leaky")["reason"]
    assert ran.last_line == "1 failed, 1 passed"
    wrong = project.run("--leakcheck-ceiling=fds=128")
    assert wrong.status == 4
    assert "--leakcheck-ceiling=fds=128 (command line): fds=128: only fd, rss, vram can be limited" in wrong.text


def test_a_wrong_mark_is_an_error_of_collection_with_the_valid_form(project_here: Project) -> None:
    project_here.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.leakcheck_ceiling(fd="a few")
        def test_it():
            pass
        """,
    )
    ran = project_here.run_here()
    assert ran.status == 2
    assert (
        "leakcheck_ceiling(fd=\"a few\"): fd: 'a few' is not a number: write 0 or 3. Valid: leakcheck_ceiling("
        in ran.text
    )
