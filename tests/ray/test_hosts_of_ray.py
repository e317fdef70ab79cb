"""Ranks on another host: it has its own network, processes, name and temporary folder, and no folder of the project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from on_ray import NEEDS_RAY
from projects import ROOT, Outcome, Project
from pytest_leakcheck.runner.processes.ray_cluster import QUIET

NEAR, FAR = "10.231.65.1", "10.231.65.2"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b2" * 32}
# Seconds: without an answer, a host counts as lost after 10.
REPORTED = 25
STEP = 5


def why_not() -> str:
    """Why this machine cannot play two hosts; empty if it can."""
    if missing := [word for word in ("unshare", "ip", "bash") if shutil.which(word) is None]:
        return f"two hosts need {missing[0]}"
    tried = subprocess.run(
        ["unshare", "--net", "--uts", "--pid", "--mount-proc", "--fork", "ip", "link", "add", "type", "veth"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return f"two hosts need namespaces: {tried.stderr.strip()}" if tried.returncode else ""


pytestmark = [NEEDS_RAY, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Hosts(NamedTuple):
    """`far` is the root of the other host's files."""

    variables: dict[str, Any]
    process: subprocess.Popen[str]
    far: Path
    temporary: Path


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    program = Path(__file__).with_name("sessions") / "two_hosts.py"
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as temporary,
        pytest.MonkeyPatch.context() as patch,
    ):
        # The other host has what the session has installed: here, the plugin of `projects`.
        installed = str(ROOT / "tests" / "support")
        for name, value in {**QUIET, **TOKEN, "TMPDIR": temporary, "PYTHONPATH": installed}.items():
            patch.setenv(name, value)
        command = [sys.executable, str(program), NEAR, FAR, temporary, str(tmp_path_factory.getbasetemp())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            pid = process.stdout.readline().strip()
            assert pid, "the hosts did not start"
            variables = {**TOKEN, "RAY_ADDRESS": f"{NEAR}:6399", "TMPDIR": temporary}
            yield Hosts(variables, process, Path(f"/proc/{pid}/root"), Path(temporary))
            process.stdin.close()


TEST = """
    import os, socket, time
    import pytest
    from words import WORD

    @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="ray", in_flight="<= 64", fd={"per_rank": "<= 64"})
    def test_rollouts(world_size, leakcheck, fixed, tmp_path):
        (tmp_path / WORD).write_text("mine")
        print("rank", leakcheck.rank, "of", world_size, "on", socket.gethostname())
        running = [b"x"] * (64 // world_size if fixed else 64)
        leakcheck.gauge("in_flight", lambda: len(running))

    @pytest.mark.scaling_budget("world_size", [2, 4, 8], engine="ray", in_flight="<= 64")
    @pytest.mark.parametrize("act", ["raises", "hangs", "is_killed"])
    def test_rank(world_size, leakcheck, act):
        leakcheck.gauge("in_flight", 1)
        if socket.gethostname() == "far":
            if act == "raises":
                int("far is broken")
        elif act == "is_killed":
            os.rename(leave("part"), "began")
        time.sleep(60)

    def leave(name):
        with open(name, "w") as file:
            file.write(name)
        return name

    def test_next():
        with open("reported", "w") as file:
            file.write(str(time.time()))
"""


@pytest.fixture
def two(project: Project) -> Project:
    project.write("pytest.ini", "[pytest]\n")
    project.write("src/words.py", 'WORD = "word"\n')
    project.write(
        "conftest.py",
        """
        import sys
        from pathlib import Path
        import pytest

        sys.path.append(str(Path(__file__).with_name("src")))

        @pytest.fixture(params=[False, True], ids=["leaky", "fixed"])
        def fixed(request):
            return request.param
        """,
    )
    project.write("tests/test_it.py", TEST)
    return project


def addresses_of(ran: Outcome, test: str) -> list[list[str]]:
    points = next(one for name, one in ran.scaled.items() if test in name)["points"]
    return [[rank["environment"]["node"].partition(" ")[2] for rank in point["recordings"]] for point in points]


def test_ranks_on_two_hosts_are_judged_as_on_one(two: Project, hosts: Hosts) -> None:
    ran = two.run("-s", "-k", "rollouts", "tests", **hosts.variables)
    assert "1 failed, 1 passed, 4 deselected" in ran.text, ran.text
    for arm, peaks in {"leaky": [64, 128, 256], "fixed": [64, 64, 64]}.items():
        found = ran.finding(f"tests/test_it.py::test_rollouts[{arm}]", "gauge:in_flight")
        assert [point["peak"] for point in found["points"]] == peaks
        assert [set(of_size) for of_size in addresses_of(ran, arm)[1:]] == [{f"({NEAR})", f"({FAR})"}] * 2
    assert len(re.findall(r"rank \d of 4 on far", ran.text)) == 4
    # Nothing that is ours stays on either host.
    for temporary in (hosts.temporary, hosts.far / hosts.temporary.relative_to("/")):
        assert temporary.is_dir()
        assert [*temporary.glob("leakcheck-*")] == []


def test_a_rank_on_another_host_sends_its_traceback_and_its_stack(two: Project, hosts: Hosts) -> None:
    ran = two.run(f"--leakcheck-max-time={STEP}", "-k", "raises or hangs", "tests", **hosts.variables)
    assert "ValueError: invalid literal for int() with base 10: 'far is broken'" in ran.one_line
    found = ran.finding("tests/test_it.py::test_rank[hangs]", "gauge:in_flight")
    assert re.fullmatch(rf"hung at world_size=2: ranks? .* made no progress for {STEP} s", found["reason"]), ran.text
    for rank in (0, 1):
        assert re.search(rf"stack of rank {rank}.*in test_rank", ran.text, re.DOTALL), ran.text


def test_a_host_that_is_killed_is_named(two: Project, hosts: Hosts) -> None:
    stdin = hosts.process.stdin
    assert stdin is not None
    began = two.folder / "began"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(two.run, "-k", "is_killed or next", "tests", **hosts.variables)
        while not began.exists() and not running.done():
            time.sleep(0.05)
        killed = time.time()
        stdin.write("\n")
        stdin.flush()
        ran = running.result()
    reason = ran.finding("tests/test_it.py::test_rank[is_killed]", "gauge:in_flight")["reason"]
    where = rf"node [0-9a-f]{{12}} \({FAR}\) at world_size=2, before the end of the test"
    assert re.fullmatch(rf"rank \d of 2 (died|was lost) on {where}", reason), ran.text
    assert float((two.folder / "reported").read_text()) - killed < REPORTED
