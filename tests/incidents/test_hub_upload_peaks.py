"""Incident 3 as a user runs it: the peaks of the arms over the shards, and what is left behind."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from leakcheck_incidents import readme
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
    assert "published arm: 3 of 3 as expected" in reproduced.stdout
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
def test_the_line_that_reads_the_shards_and_the_list_that_keeps_them_are_named(
    reproduced: subprocess.CompletedProcess[str],
) -> None:
    for arm, function in ((leaky, leaky.RetainingUploader._send), (leaky_commit, leaky_commit.CommitUploader._send)):
        lines = inspect.getsource(arm).splitlines()
        (line,) = [number for number, text in enumerate(lines, 1) if "path.read_bytes()" in text]
        site = f"hub_upload/{arm.__name__.rpartition('.')[2]}.py:{line} in {function.__qualname__}()"
        assert re.search(rf"^  allocated +{re.escape(site)}$", reproduced.stdout, re.MULTILINE), reproduced.stdout
    owners = re.findall(r"^  held by +(.*)$", reproduced.stdout, re.MULTILINE)
    assert owners == ["ShardedUploader.upload() local 'additions'"] * 2, reproduced.stdout


@pytest.mark.laboratory
def test_the_readme_shows_the_report(reproduced: subprocess.CompletedProcess[str]) -> None:
    shown, said = readme.report(Path(leaky.__file__).parent), readme.first_block(reproduced.stdout)
    # Which call of a library was the innermost at that look differs.
    shown, said = (re.sub(r"(?m)^ +inside .*\n", "", text) for text in (shown, said))
    assert readme.steady(shown) == readme.steady(said), "run: python -m leakcheck_incidents.readme hub_upload"


def test_the_arms_differ_by_two_lines_of_code() -> None:
    ours, theirs = (inspect.getsource(arm).splitlines() for arm in (fixed, leaky))
    assert len(ours) == len(theirs)
    different = [(one, other) for one, other in zip(ours, theirs, strict=True) if one != other]
    # The docstrings of the module and of the class, and the name of the class.
    assert [one for one, _other in different[:3] if '"""' in one or one.startswith("class ")] == [
        one for one, _ in different[:3]
    ]
    assert "path.read_bytes()" in different[3][1]
    assert "free_memory=False" in different[4][1]
    assert len(different) == 5
