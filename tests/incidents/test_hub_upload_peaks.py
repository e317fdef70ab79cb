"""Incident 3 as a user runs it: the peaks of the arms over the shards, and what is left behind."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.hub_upload import fixed, leaky, leaky_commit, releases
from leakcheck_incidents.hub_upload.releases import Checked
from projects import Project
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.scaling_points import Point, Scaled
from pytest_leakcheck.model.verdict import Verdict
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


@pytest.mark.laboratory
def test_the_plan_states_no_less_than_the_peak(project: Project) -> None:
    """And the peak goes by the groups of rows: shards of twelve times the size take no more, but for single rows."""
    project.write(
        "test_it.py",
        """
        import pytest
        from datasets import load_from_disk
        from huggingface_hub import HfApi
        from leakcheck_incidents.hub_upload import fixed

        pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

        @pytest.fixture
        def api(loopback_hub, synthetic_arrow):
            api = HfApi(endpoint=loopback_hub.url, token=loopback_hub.token)
            fixed.upload(load_from_disk(str(synthetic_arrow(rows=4))), "user/warm", shards=2, api=api)
            return api

        @pytest.mark.scaling_budget("mib", [10, 30, 90], rss="512 KiB/mib")
        def test_shards_that_grow(api, synthetic_arrow, mib):
            dataset = load_from_disk(str(synthetic_arrow(rows=mib, file_size=1 << 20, nested=False, nulls=0)))
            plan = fixed.upload(dataset, "user/one", shards=1, api=api)
            assert 33 << 20 < plan.memory < 41 << 20
        """,
    )
    done = project.run("-p", "leakcheck_incidents.material", "--leakcheck-summary=all", limit=900)
    assert done.verdicts == {("test_shards_that_grow", "rss"): "ok"}, done.text
    peaks = [point["recordings"][0]["peaks"]["rss"] for scaled in done.scaled.values() for point in scaled["points"]]
    assert len(peaks) == 3
    assert all(peak < 33 << 20 for peak in peaks), peaks


def found(test: str, *verdicts: Verdict, scaled: Scaled | None = None) -> Finding:
    return Finding(test, verdicts, {}, (), {}, Recording(test, ()), {}, scaled=scaled)


PEAKS = tuple(Point(size, (Recording("", (), peaks={"rss": peak << 20}),)) for size, peak in ((2, 5), (4, 6)))
FINDINGS = [
    found("::test_peak[push_to_hub]", Verdict("rss", "ok"), scaled=Scaled("shards", "", PEAKS)),
    found(
        "::test_left_behind[push_to_hub]",
        Verdict("disk", "leak", reason="+4.0/iter"),
        Verdict("fd", "leak", reason="of another resource"),
    ),
]


def test_a_release_is_read_from_the_findings() -> None:
    assert releases.read_verdicts(FINDINGS) == {"peak": "ok", "disk": "leak: +4.0/iter"}
    assert releases.read_verdicts(FINDINGS[:1]) == {"peak": "ok"}
    assert releases.read_peaks(FINDINGS) == {2: 5 << 20, 4: 6 << 20}
    assert releases.read_peaks([]) == {}


def test_a_release_is_red_by_any_verdict_and_not_checked_without_one() -> None:
    red = Checked("4.6.0", "1.33.0", {"peak": "ok", "disk": "leak: +4.0/iter"}, {2: 5 << 20, 4: 6 << 20})
    assert red.status == releases.RED
    assert str(red).splitlines() == [
        "datasets 4.6.0, huggingface_hub 1.33.0",
        "  peak    ok",
        "  disk    leak: +4.0/iter",
        "  peaks   5, 6 MiB at 2, 4 shards of 20 MiB",
    ]
    assert Checked("4.6.1", "1.33.0", {"peak": "ok", "disk": "ok"}).status == releases.GREEN
    missing = Checked("9.9", "", {}, said="\nno such release")
    assert missing.status == releases.NOT_CHECKED
    assert "not installed" in str(missing)
    assert "no such release" in str(missing)


@pytest.mark.laboratory
def test_a_release_that_does_not_exist(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # No index is asked: the variable makes pip search none.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert releases.main(["0.0.0.dev1"]) == releases.NOT_CHECKED
    said = capsys.readouterr().out
    assert "datasets 0.0.0.dev1, huggingface_hub not installed" in said
    assert "No matching distribution found" in said
