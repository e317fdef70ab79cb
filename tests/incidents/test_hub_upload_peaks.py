"""Incident 3 as a user runs it: the peaks of the arms over the shards, and what is left behind."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.hub_upload import fixed, leaky, leaky_commit
from shell import shell

INCIDENT = INCIDENTS["hub_upload"]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    return shell("repro", INCIDENT.name, "--arm", "all", folder=tmp_path_factory.mktemp("repro"), limit=900)


@pytest.mark.laboratory
def test_all_arms_come_out_as_they_must(reproduced: subprocess.CompletedProcess[str]) -> None:
    assert reproduced.returncode == 0, reproduced.stdout + reproduced.stderr
    assert "leaky arm: 1 of 1 as expected" in reproduced.stdout
    assert "leaky_commit arm: 1 of 1 as expected" in reproduced.stdout
    assert "fixed arm: 3 of 3 as expected" in reproduced.stdout
    assert "push_to_hub arm: 3 of 3 as expected" in reproduced.stdout
    assert "NOT" not in reproduced.stdout
    # One line of pytest per test, when all of its sizes are over.
    assert len(re.findall(r"::test_peak_of_operations\[leaky\] OVER BUDGET ", reproduced.stdout)) == 1
    assert len(re.findall(r"::test_peak\[fixed\] PASSED ", reproduced.stdout)) == 1


@pytest.mark.laboratory
def test_a_leaky_arm_keeps_a_shard_per_shard(reproduced: subprocess.CompletedProcess[str]) -> None:
    slopes = re.findall(r"^rss \+([\d.]+) MiB per shard", reproduced.stdout, re.MULTILINE)
    assert len(slopes) == 2, reproduced.stdout
    assert all(18 <= float(slope) <= 21 for slope in slopes), slopes


@pytest.mark.laboratory
def test_the_line_that_reads_the_shards_is_named(reproduced: subprocess.CompletedProcess[str]) -> None:
    """As the cause; at a size at which the Hub has more memory than the shards, with its share of the peak."""
    for arm in (leaky, leaky_commit):
        lines = inspect.getsource(arm).splitlines()
        (line,) = [number for number, text in enumerate(lines, 1) if "path.read_bytes()" in text]
        name = f"{arm.__name__.rpartition('.')[2]}.py"
        assert re.search(
            rf"^  (allocated|largest) +hub_upload/{name}:{line} in upload\(\)$", reproduced.stdout, re.MULTILINE
        )


def test_the_arms_differ_by_three_lines() -> None:
    ours, theirs = (inspect.getsource(arm).splitlines() for arm in (fixed, leaky))
    assert len(ours) == len(theirs)
    different = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    assert len(different) == 3
    assert different[0][0].startswith('"""')
    assert "path.read_bytes()" in different[1][1]
    assert "free_memory=False" in different[2][1]
