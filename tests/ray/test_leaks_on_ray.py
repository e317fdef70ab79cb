"""Leaks of public reports on Ray: the leaky arm is red by an exact counter, with its line, and the fixed one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from on_ray import NEEDS_RAY
from projects import Outcome, Project, line_of

pytestmark = [NEEDS_RAY, pytest.mark.usefixtures("guarded_ray")]
SESSION = Path(__file__).with_name("sessions") / "arms_on_ray.py"
# The resource of each test, and by how much it rises in each iteration.
LEAKS = {
    "test_ref_of_a_trial": ("ray_ref", 1.0),
    "test_actor_not_killed": ("ray_actor", 1.0),
    "test_placement_group_not_removed": ("ray_placement_group", 1.0),
    "test_ref_stored_in_an_actor": ("ray_ref", 1.0),
    "test_object_made_by_an_actor": ("ray_object", 1.0),
    "test_zombies_of_jobs": ("process", 2.0),
    "test_results_of_a_graph": ("object", 2.0),
    "test_heap_of_a_replica_in_this_process": ("heap", 140_000.0),
    "test_descriptors_of_runtime_environments": ("fd", 1.0),
}
# Those of which a worker alone holds what stays.
ELSEWHERE = ("test_ref_stored_in_an_actor", "test_object_made_by_an_actor")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All arms in one session, since a cluster takes seconds to start."""
    project = Project(tmp_path_factory.mktemp("arms"))
    project.copy("cluster.py", "conftest.py")
    project.copy("arms_on_ray.py")
    return project.run("--leakcheck-max-time=120")


@pytest.mark.parametrize("name", LEAKS)
def test_a_leaky_arm_is_red_and_names_its_line(outcome: Outcome, name: str) -> None:
    resource, slope = LEAKS[name]
    test = f"{name}[leaky]"
    red = {key[1] for key, verdict in outcome.verdicts.items() if key[0] == test and verdict == "leak"}
    assert red == {resource}, outcome.text
    found = outcome.finding(test, resource)
    assert found["slope"] == pytest.approx(slope, rel=0.01)
    assert found["site"]["line"] == line_of(name, SESSION.read_text(encoding="utf-8"))


def test_no_fixed_arm_is_red(outcome: Outcome) -> None:
    fixed = {key: verdict for key, verdict in outcome.verdicts.items() if not key[0].endswith("[leaky]")}
    assert len({test for test, _resource in fixed}) == len(LEAKS) + 1
    # Memory beside the threads of Ray may need more iterations than the time allows.
    assert {key for key, verdict in fixed.items() if verdict != "ok"} <= {
        ("test_heap_of_a_replica_in_this_process[fixed]", "heap")
    }, outcome.text
    assert set(fixed.values()) <= {"ok", "inconclusive"}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_a_worker_holds_is_said(outcome: Outcome, name: str) -> None:
    why = outcome.finding(f"{name}[leaky]", LEAKS[name][0])["culprit"]["unresolved"]["owner"]
    assert why.startswith("held by worker ")
    assert why.endswith("), whose objects are not searched")
