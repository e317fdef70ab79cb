"""Which cluster a world runs on, and what a session says in bounded time if there is none, or no room on it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from on_ray import NEEDS_RAY
from processes_left import left_over, never_removed
from projects import Outcome, Project
from pytest_leakcheck.runner.processes.ray_cluster import LocalCluster
from pytest_leakcheck.runner.processes.ray_ranks import TUNED_VARIABLE

pytestmark = NEEDS_RAY

# Seconds. Ray is given 40 to answer and 20 for room.
BOUND = 80
TOKEN = "f0" * 32


def reason_of(ran: Outcome) -> str:
    assert ran.last_line == "1 skipped", ran.text
    found = ran.finding("test_world", "rss")
    assert found["verdict"] == "unavailable"
    return str(found["reason"])


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Any]]:
    """Variables of a cluster of four CPUs that the session has not started."""
    started = LocalCluster(4, lambda: None)
    yield {name: value for name, value in started.variables.items() if name != TUNED_VARIABLE}
    started.close()


def test_a_cluster_that_ray_address_names_has_no_room(project: Project, cluster: dict[str, Any]) -> None:
    project.copy("passes.py", SIZES=[1, 8, 64])
    ran = project.run(OF_THE_SESSION="yes", **cluster)
    assert reason_of(ran) == (
        "the Ray cluster has no room for 8 ranks: 4 CPUs, 4 of them free after 20 s; each rank takes one: give the "
        "cluster more CPUs, or the mark smaller sizes"
    )


def test_no_cluster_at_ray_address(project: Project) -> None:
    project.copy("passes.py")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    ran = project.run(OF_THE_SESSION="yes", RAY_ADDRESS=address)
    reason = reason_of(ran)
    assert reason.startswith(f"cannot connect to a Ray cluster at {address}: ConnectionRefusedError")
    assert "start one (ray start --head), or unset RAY_ADDRESS" in reason


def test_something_else_at_ray_address(project: Project) -> None:
    project.copy("passes.py")
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        ran = project.run(OF_THE_SESSION="yes", RAY_ADDRESS=address)
    assert reason_of(ran).startswith(f"cannot connect to a Ray cluster at {address}: no answer after 40 s")
    assert time.monotonic() - began < BOUND


def test_the_cluster_of_the_project_is_used(project: Project) -> None:
    project.copy("passes.py")
    project.write(
        "conftest.py",
        """
        import ray

        def pytest_configure():
            if not ray.is_initialized():
                ray.init(num_cpus=4, include_dashboard=False)

        def pytest_unconfigure():
            if "RANK" not in __import__("os").environ:
                print("CPUs used:", ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0))
                ray.shutdown()
        """,
    )
    home = project.folder / "home"
    home.mkdir()
    given: dict[str, Any] = {
        "HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    ran = project.run("-s", OF_THE_SESSION="yes", **given)
    assert ran.verdicts == {("test_world", "rss"): "ok"}, ran.text
    assert "CPUs used: 0.0" in ran.text
    assert TOKEN not in ran.text + (project.folder / "findings.json").read_text()


def test_nothing_is_left_of_a_session_that_is_killed(project: Project) -> None:
    project.copy("waits.py", "test_it.py")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        environment = {**os.environ, "TMPDIR": temporary}
        command = [sys.executable, "-m", "pytest", "--leakcheck", "-p", "no:cacheprovider"]
        session = subprocess.Popen(command, cwd=project.folder, env=environment, stdout=subprocess.DEVNULL)
        try:
            while session.poll() is None and not (project.folder / "pids").exists():
                time.sleep(0.05)
            assert processes_of(temporary)
        finally:
            session.send_signal(signal.SIGKILL)
            session.wait()
        assert not left_over(project.folder)
        deadline = time.monotonic() + BOUND
        while processes_of(temporary) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert processes_of(temporary) == []
        assert not never_removed(Path(temporary).glob("leakcheck-*/session_*"))


def processes_of(folder: str) -> list[list[str]]:
    """The command lines of processes that name the folder."""
    found = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    return [words for words in found if any(folder in word for word in words)]
