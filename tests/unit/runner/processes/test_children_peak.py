"""When the memory of children is sampled, and in which step of a test it counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from literal_readings import SleepingClock
from pytest_leakcheck.runner.processes import children_peak as module
from pytest_leakcheck.runner.processes.children_peak import ChildrenPeak

CHILD = 7


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose children were listed: one, which has 100 bytes and runs another program."""
    listed: list[int] = []

    def descendants(pid: int) -> list[int]:
        listed.append(pid)
        return [CHILD]

    monkeypatch.setattr(module, "descendants", descendants)
    monkeypatch.setattr(module, "resident_of", lambda _pid: 0)
    monkeypatch.setattr(module, "anonymous_of", lambda _pid: 0)
    monkeypatch.setattr(module, "peak_of", lambda _pid: 100)
    monkeypatch.setattr(module, "read_command_line", str)
    return listed


@pytest.mark.parametrize(("step", "peak"), [(1, 0), (2, 100), (3, 0)])
def test_memory_of_a_child_counts_while_the_body_runs(step: int, peak: int, looks: list[int]) -> None:
    children = ChildrenPeak()
    children.look(1, cast("Any", SimpleNamespace(iteration=step)))
    assert children.peak == peak
    assert len(looks) == (step < 3)


def test_children_are_sampled_fifty_times_a_second(looks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    clock, children = SleepingClock(monkeypatch), ChildrenPeak()
    for clock.now in (10.0, 10.015, 10.025, 10.04, 10.05):
        children.look(1, cast("Any", SimpleNamespace(iteration=2)))
    assert len(looks) == 3
