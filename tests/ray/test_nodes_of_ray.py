"""Ranks on the nodes of a cluster, which are all on this machine: Ray spreads them, and one that is lost is named."""

from __future__ import annotations

import re
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
from projects import Outcome, Project
from pytest_leakcheck.runner.processes.ray_cluster import QUIET

pytestmark = NEEDS_RAY
REPORTED = 10
# The token of this cluster alone.
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a1" * 32}
TEST = """
    import os, time
    import pytest

    LOST = {lost}

    @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="ray", rss="<= 200 MiB")
    def test_world(world_size, leakcheck):
        if LOST and world_size == 2:
            if leakcheck.rank == 1:
                import ray
                os.rename(leave("part", ray.get_runtime_context().get_node_id()), "node")
            time.sleep(60)

    def leave(name, text):
        with open(name, "w") as file:
            file.write(text)
        return name

    def test_next():
        leave("reported", str(time.time()))
"""


class Nodes(NamedTuple):
    """A cluster: the variables to connect to it, and the process that has its nodes."""

    variables: dict[str, Any]
    process: subprocess.Popen[str]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    program = Path(__file__).with_name("sessions") / "two_nodes.py"
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as temporary,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**QUIET, **TOKEN}.items():
            patch.setenv(name, value)
        command = [sys.executable, str(program), temporary]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, "the nodes did not start"
            yield Nodes({"RAY_ADDRESS": address, **TOKEN}, process)
            process.stdin.close()


def nodes_of(ran: Outcome) -> list[list[str]]:
    """The node of each rank, by size."""
    points = next(iter(ran.scaled.values()))["points"]
    return [[rank["environment"]["node"] for rank in point["recordings"]] for point in points]


def test_ranks_are_spread_over_the_nodes(project: Project, nodes: Nodes) -> None:
    ran = project.run_test(TEST.format(lost=False), **nodes.variables)
    assert ran.last_line == "2 passed", ran.text
    assert [len(set(one)) for one in nodes_of(ran)] == [1, 2, 2]
    assert [len(one) for one in nodes_of(ran)] == [1, 2, 4]


def test_a_node_that_is_killed_is_named(project: Project, nodes: Nodes) -> None:
    project.write("test_it.py", TEST.format(lost=True))
    node, stdin = project.folder / "node", nodes.process.stdin
    assert stdin is not None
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(project.run, **nodes.variables)
        while not node.exists() and not running.done():
            time.sleep(0.05)
        name = node.read_text()
        killed = time.time()
        stdin.write(f"{name}\n")
        stdin.flush()
        ran = running.result()
    where = rf"node {name[:12]} \([0-9.]+\) at world_size=2, before the end of the test"
    assert re.fullmatch(rf"rank 1 of 2 (died|was lost) on {where}", ran.finding("test_world", "rss")["reason"])
    assert "Ray on rank 1 of 2: " in ran.text
    assert float((project.folder / "reported").read_text()) - killed < REPORTED
