"""Regressions of incident 4 turn the tests of its fixed arm red, and refactorings do not."""

from __future__ import annotations

import pytest

from planting import Change, judge_change, red_findings
from projects import Project

REGRESSIONS = [
    Change(
        "each rank applies the limits of all ranks",
        {
            "staleness.py": [
                (
                    "concurrent, batch = max(1, self.concurrent // world_size), max(1, self.batch // world_size)",
                    "concurrent, batch = self.concurrent, self.batch",
                )
            ]
        },
        "test_as_it_was_met",
    ),
]


@pytest.mark.laboratory
@pytest.mark.parametrize("change", REGRESSIONS, ids=lambda change: change.what)
def test_a_regression_is_red(project: Project, change: Change) -> None:
    ran = judge_change(project, "rollout_executor", change)
    assert red_findings(ran), ran.text
