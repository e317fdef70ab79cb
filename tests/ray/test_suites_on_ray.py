"""Suites on Ray under ``--leakcheck-scope=all``: what keeps nothing is not red, and no outcome changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from on_ray import NEEDS_RAY
from projects import Outcome, Project, line_of

pytestmark = [NEEDS_RAY, pytest.mark.usefixtures("guarded_ray")]
SESSIONS = Path(__file__).with_name("sessions")


def outcomes(outcome: Outcome) -> list[str]:
    """pytest's own outcome of each test, without what the plugin adds."""
    return sorted(set(re.findall(r"^(?:PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) \S.*$", outcome.text, re.MULTILINE)))


def test_clean_workloads_are_not_red(project: Project) -> None:
    project.copy("cluster.py", "conftest.py")
    project.copy("clean_on_ray.py")
    outcome = project.run("--leakcheck-scope=all", "-rA")
    assert "LEAK" not in outcome.text, outcome.text
    assert not {key for key, verdict in outcome.verdicts.items() if verdict in ("leak", "over_budget", "unclosed")}
    judged = {test for test, resource in outcome.verdicts if resource == "ray_ref"}
    assert len(judged) >= 24, outcome.text
    # The buffers of Ray's own threads are in these.
    assert {resource for _test, resource in outcome.verdicts}.isdisjoint({"heap", "mmap", "rss"})
    assert outcome.status == 0


def test_a_suite_with_the_fixtures_of_ray(project: Project) -> None:
    project.copy("suite_on_ray.py")
    plain = project.run("-rA", leakcheck=False)
    assert plain.last_line == "7 passed, 1 skipped, 1 xfailed"
    outcome = project.run("--leakcheck-scope=all", "-rA")
    assert outcomes(outcome) == outcomes(plain)
    red = {key for key, verdict in outcome.verdicts.items() if verdict == "leak"}
    assert red == {("test_kept", "ray_ref")}, outcome.text
    found = outcome.finding("test_kept", "ray_ref")
    assert (found["slope"], found["culprit"]["owner"]["name"]) == (1.0, "test_it.KEPT")
    text = (SESSIONS / "suite_on_ray.py").read_text(encoding="utf-8")
    assert found["site"]["line"] == line_of("test_kept", text)
