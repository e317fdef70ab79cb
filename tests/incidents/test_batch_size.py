"""Incident 5: the fixed share runs out on one configuration and idles on another; the learnt one does neither."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path

import pytest

from leakcheck_incidents import readme
from leakcheck_incidents.batch_size import fixed, leaky
from leakcheck_incidents.catalog import INCIDENTS, Expectation
from projects import Outcome, Project

INCIDENT = INCIDENTS["batch_size"]
# Plugins that play no part would be loaded by each of five processes.
LEAN = "-p pytest_leakcheck.plugin"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("batch_size"))
    (project.folder / "pytest.ini").write_text("[pytest]\n")
    # A folder for temporary files of its own: others would count what tests beside these leave in the machine's.
    temporary = tmp_path_factory.mktemp("t")
    return project.run(
        "--pyargs",
        INCIDENT.tests,
        limit=900,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PYTEST_ADDOPTS=LEAN,
        TMPDIR=str(temporary),
    )


@pytest.mark.laboratory
@pytest.mark.parametrize("expected", [one for all_of in INCIDENT.arms.values() for one in all_of], ids=str)
def test_each_arm_comes_out_as_it_must(ran: Outcome, expected: Expectation) -> None:
    found = ran.finding(expected.test, expected.resource)
    assert found["verdict"] == expected.verdict, ran.text
    assert expected.slope in (None, found["slope"])


@pytest.mark.laboratory
def test_the_fixed_share_runs_out_of_memory_on_the_heavy_configuration(ran: Outcome) -> None:
    found = ran.finding("test_heavy[leaky]", "vram")
    assert "failed under the ceiling of 4.0 MiB, before growth was detected" in found["reason"]
    assert "DeviceOutOfMemory: CUDA out of memory (simulated)" in found["reason"]


@pytest.mark.laboratory
def test_and_leaves_two_fifths_of_the_device_idle_on_the_light_one_which_is_learnt_away(ran: Outcome) -> None:
    by_arm = {test.rpartition("[")[2].rstrip("]"): scaled for test, scaled in ran.scaled.items()}
    idle = {arm: [point["peaks"]["gauge:idle"] for point in one["points"]] for arm, one in by_arm.items()}
    assert all(37 <= percent <= 43 for percent in idle["leaky"]), idle
    assert idle["fixed"] == sorted(idle["fixed"], reverse=True)
    assert 8 <= idle["fixed"][-1] <= 12
    assert ran.last_line == "3 failed, 6 passed"


@pytest.mark.laboratory
def test_what_is_learnt_is_bounded_by_the_peak_and_said_to_be_simulated(ran: Outcome) -> None:
    peaks = [one for one in ran.findings if one["test"].endswith("test_heavy[fixed]") and one["peak"]]
    assert [(one["verdict"], one["kind"]) for one in peaks] == [("ok", "simulated")]


def test_the_arms_differ_by_what_is_learnt_from() -> None:
    old, new = (inspect.getsource(arm).splitlines() for arm in (leaky.FixedShare, fixed.AdaptiveBatchSize))
    changed = [line for line in difflib.ndiff(old, new) if line.startswith("- ")]
    assert [line for line in changed if "class " not in line and '"""' not in line] == [
        '-         return Proposal(0.6, "fixed")'
    ]


def test_without_a_simulated_device_it_is_skipped_and_says_so(project: Project) -> None:
    without = ("-p", "no:leakcheck_incidents.simulated")
    outcome = project.run("--pyargs", INCIDENT.tests, "-k", "learning", "-rs", *without, leakcheck=False)
    assert outcome.last_line == "2 skipped, 7 deselected"
    assert "no simulated accelerator: load it with -p leakcheck_incidents.simulated" in outcome.text


@pytest.mark.laboratory
def test_the_report_in_its_readme_is_up_to_date(ran: Outcome) -> None:
    shown = readme.steady(readme.report(Path(leaky.__file__).parent))
    assert shown
    assert shown.strip() in readme.steady(ran.text), "run: python -m leakcheck_incidents.readme batch_size"
