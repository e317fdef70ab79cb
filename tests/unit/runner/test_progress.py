"""Who follows a repetition is told how far it is, and what that takes is none of what is measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_leakcheck.config.budget import parse_budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.runner import progress
from pytest_leakcheck.runner.progress import Progress, ProgressReports, follow
from pytest_leakcheck.runner.repetition import Repetition
from repeats import Clock

TOLD: list[Progress] = []


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Progress]]:
    monkeypatch.setattr(progress, "FOLLOWERS", [])
    monkeypatch.setattr(progress, "AFTER", 0.0)
    monkeypatch.setattr(progress, "EVERY", 0.0)
    follow(TOLD.append)
    yield TOLD
    TOLD.clear()


def test_progress_is_told_from_one_second_on_four_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Clock(monkeypatch), list[float]()
    monkeypatch.setattr(progress, "FOLLOWERS", [lambda _progress: told.append(clock.now)])
    reports = ProgressReports(100)
    for tenths in range(18):
        clock.now = tenths / 10
        reports.report_warm_up(tenths, 100)
    assert told == [1.0, 1.3, 1.6]


def repeat(kept: list[object] | None) -> dict[str, str]:
    budgets = tuple(parse_budget(name, (0,) if name == "object" else (), {}) for name in ("object", "heap"))
    repetition = Repetition(Plan("test_it", budgets, Effort(warmup=3, max_time=30.0)))
    repetition.begin()
    while True:
        if kept is not None:
            kept.append([])
        if not repetition.iteration_done():
            break
    return {verdict.resource: verdict.outcome for verdict in repetition.end().verdicts}


@pytest.mark.usefixtures("frozen")
def test_a_clean_repetition_stays_clean_while_it_is_followed(told: list[Progress]) -> None:
    """Each word of it is kept by this test: hundreds of objects, none of which may count."""
    assert repeat(None) == {"object": "ok", "heap": "ok"}
    warmup, measured = told[:3], told[3:]
    assert [(one.state, one.iteration, one.most) for one in warmup] == [("warming up", n, 3) for n in (1, 2, 3)]
    iterations = [one.iteration for one in measured]
    assert iterations == sorted(iterations)
    assert iterations[0] == 1
    assert len(measured) >= 50
    assert all(one.state == "measuring" and one.iteration <= one.most for one in measured)
    assert set(told[-1].growth) == {"object", "heap"}
    assert {one.growth["object"] for one in measured} == {0.0}
