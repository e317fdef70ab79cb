"""That each case is what it says: counted by another instrument than the plugin's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cases.catalog import ARMS
from projects import ROOT

pytestmark = [
    pytest.mark.laboratory,
    pytest.mark.skipif(sys.platform != "linux", reason="the cases are made of Linux: /proc, /dev/shm, epoll"),
]

# Less than this per call is no leak: bytes of a table that grows by doubling, a counter that a neighbour moves.
LEAST: Final = {"heap": 60, "mmap": 4000, "object": 0.5, "block": 0.9, "fd": 0.2, "rss": 1 << 20} | dict.fromkeys(
    ("thread", "process", "shm", "disk", "task"), 0.5
)


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """By arm and kind, per call."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}", "TMPDIR": str(tmp_path_factory.mktemp("measured"))}
    done = subprocess.run(
        [sys.executable, "-m", "cases.measured"], env=environment, capture_output=True, check=True, timeout=600
    )
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    assert done.stderr == b""
    assert list(Path(environment["TMPDIR"]).iterdir()) == []
    return measured


def test_leaky_arms_leak_what_they_say(growth: dict[str, dict[str, float]]) -> None:
    leaky = [(name, case) for name, (case, arm) in ARMS.items() if arm is case.leaky]
    assert [name for name, case in leaky if all(growth[name][kind] < LEAST[kind] for kind in case.kind)] == []


def test_other_arms_retain_nothing(growth: dict[str, dict[str, float]]) -> None:
    """Fixed and clean arms retain nothing of their case's resources; a pool of processes raises other counters once."""
    retained = {
        name: {kind: growth[name][kind] for kind in case.kind or LEAST if growth[name][kind] >= LEAST[kind]}
        for name, (case, arm) in ARMS.items()
        if arm is not case.leaky and not case.doubt
    }
    assert {name: kinds for name, kinds in retained.items() if kinds} == {}
