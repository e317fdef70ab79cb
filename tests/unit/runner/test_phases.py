"""Which phase of a repetition follows which. The fixture `begun` checks that each may follow."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Effort, Plan
from pytest_leakcheck.runner import phases
from pytest_leakcheck.runner.phases import Phase
from pytest_leakcheck.runner.repetition import Repetition
from repeats import Clock, descriptors, open_null

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux"),
    pytest.mark.usefixtures("frozen", "impatient"),
]
PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
WARM = ["WarmUp", "LastWarmUp"]


def repeat(work: Callable[[Repetition], object], *, has_run: bool = False, screen: bool = False, **effort: Any) -> str:
    """Repeat work that may retain descriptors, and return the outcome."""
    plan = Plan("t", (Budget("fd"),), Effort(**{"min_time": 0, "warmup": 1 if screen else 3, **effort}), screen=screen)
    repetition = Repetition(plan, has_run=has_run)
    repetition.begin()
    if repetition.is_warm:
        repetition.start()
    work(repetition)
    while repetition.iteration_done():
        work(repetition)
    return "".join(verdict.outcome for verdict in repetition.end().verdicts)


@pytest.mark.parametrize(
    ("keeps", "screen", "outcome", "expected"),
    [
        ("nothing", False, "ok", ["Measure", "Judged"]),
        ("nothing", True, "ok", ["Screen", "Judged"]),
        ("all", False, "leak", ["Measure", "Search", "Judged"]),
        ("all", True, "leak", ["Screen", "Measure", "Search", "Judged"]),
        ("21", False, "ok", ["Measure", "Search", "Measure", "Judged"]),
        ("unless searched", False, "leak", ["Measure", "Search", "Measure", "Search", "Judged"]),
    ],
)
def test_a_phase_follows_from_what_is_kept(
    keeps: str, screen: bool, outcome: str, expected: list[str], begun: list[str]
) -> None:
    with descriptors() as kept:

        def work(repetition: Repetition) -> None:
            if {"nothing": False, "all": True, "21": len(kept) < 21}.get(keeps, not repetition.searched):
                kept.append(open_null())

        assert (repeat(work, screen=screen), begun) == (outcome, WARM + expected)


@pytest.mark.parametrize(
    ("max_time", "screen", "outcome", "expected"),
    [
        (3, False, "", ["WarmUp", "Ended"]),
        (7, False, "inconclusive", [*WARM, "Measure", "Judged"]),
        (7, True, "inconclusive", [*WARM, "Screen", "Measure", "Judged"]),
    ],
)
def test_without_time_what_was_read_is_judged_in_full(  # noqa: PLR0917 - what is given and what is seen
    max_time: float,
    screen: bool,
    outcome: str,
    expected: list[str],
    begun: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    assert (repeat(lambda _: clock.take(2), max_time=max_time, screen=screen), begun) == (outcome, expected)


def test_a_gauge_that_the_first_iteration_adds_makes_it_the_warm_up(begun: list[str]) -> None:
    gauges = {"kept": lambda: 0}

    def work(repetition: Repetition) -> None:
        if gauges:
            repetition.follow(dict(gauges), (Budget("gauge:kept"),))
            gauges.clear()

    assert repeat(work, screen=True, has_run=True) == "okok"
    assert begun == [*WARM, "Screen", "LastWarmUp", "Screen", "Judged"]


def test_to_compare_phases_retains_nothing() -> None:
    """With abstract base classes, the first iteration of a process retained six objects."""
    assert {type(one) for one in vars(phases).values() if isinstance(one, type) and issubclass(one, Phase)} == {type}


def test_the_page_has_each_phase_that_may_follow() -> None:
    shown = set(re.findall(r"^    (\w+) --> (\w+)", PAGE.read_text(), re.MULTILINE))
    types = [one for one in vars(phases).values() if isinstance(one, type) and issubclass(one, Phase)]
    assert shown == {(one.__name__, after) for one in types if one is not Phase for after in one.follows}


def test_a_search_without_time_left_gets_a_fifth_of_the_time_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, begun_at = Clock(monkeypatch), list[float]()
    with descriptors() as kept:

        def work(repetition: Repetition) -> None:
            if repetition.searched:
                begun_at.append(clock.now)
            clock.take(3.0 if repetition.searched else 5.0)
            kept.append(open_null())

        assert repeat(work, max_time=100.0) == "leak"
    assert begun_at[0] == 100
    assert 110 < begun_at[-1] < 120
