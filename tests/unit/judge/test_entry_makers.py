"""Verdicts where it is unknown which process made an entry, by literal numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.entry_makers import account_for_makers
from pytest_leakcheck.model.verdict import Outcome, Verdict
from pytest_leakcheck.probes.folders import Folder
from pytest_leakcheck.runner.makers_of_folder import entry_makers


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder("disk", str(tmp_path))
    folder.open()
    return folder


def set_aside(folder: Folder, working: int, resting: int) -> None:
    """These came, and names like theirs came while the test rested."""
    folder.others["tmp-#"] = "tmp-1"
    for number in range(working):
        folder._aside[f"tmp-{number}"] = 1
    for number in range(resting):
        folder._aside[f"tmp-{1_000_000 + number}"] = -1


def said(folder: Folder, outcome: Outcome, iterations: int, *, final: bool = True) -> Verdict | None:
    verdict = Verdict("disk", outcome, iterations=iterations, floor=0.1, reason="as it was")
    return account_for_makers(verdict, Budget("disk", 0), entry_makers(folder), final=final)


def test_without_what_is_set_aside_the_verdict_stands(folder: Folder) -> None:
    assert said(folder, "ok", 13) == Verdict("disk", "ok", iterations=13, floor=0.1, reason="as it was")


@pytest.mark.parametrize(
    ("working", "iterations"), [(1, 13), (4, 16), (16, 16), (50, 16), (40, 100), (300, 300), (40_000, 100_000)]
)
def test_as_many_as_a_leak_would_have_left_is_never_in_order(folder: Folder, working: int, iterations: int) -> None:
    set_aside(folder, working, 7)
    verdict = said(folder, "ok", iterations)
    assert verdict
    assert verdict.outcome == "inconclusive"
    assert verdict.reason == (
        f"names like tmp-# also come from elsewhere: {working} while the test ran, 7 while it was paused"
    )
    assert verdict.advice == (
        f"run it where nothing else writes to {folder.path}: with a private TMPDIR, or with --leakcheck-isolate"
    )
    assert verdict.floor is None


@pytest.mark.parametrize(("working", "iterations"), [(0, 13), (1, 20), (2, 25), (10, 60), (70, 300), (3, 100_000)])
def test_fewer_exclude_a_leak_and_the_floor_says_which(folder: Folder, working: int, iterations: int) -> None:
    set_aside(folder, working, 7)
    verdict = said(folder, "ok", iterations)
    assert verdict
    assert verdict.outcome == "ok"
    assert verdict.floor
    if working:
        assert working / iterations < verdict.floor <= 1 / 3
        assert f"{working} while the test ran" in verdict.reason


def test_more_iterations_are_asked_for_only_where_they_may_tell(folder: Folder) -> None:
    set_aside(folder, 3, 7)
    assert said(folder, "ok", 13, final=False) is None
    assert (said(folder, "ok", 13) or Verdict("disk", "leak")).outcome == "inconclusive"
    set_aside(folder, 9, 7)
    assert (said(folder, "ok", 13, final=False) or Verdict("disk", "leak")).outcome == "inconclusive"


def test_a_leak_stands_and_a_doubt_says_what_was_set_aside(folder: Folder) -> None:
    set_aside(folder, 16, 7)
    assert said(folder, "leak", 16) == Verdict("disk", "leak", iterations=16, floor=0.1, reason="as it was")
    doubt = said(folder, "inconclusive", 16)
    assert doubt
    assert doubt.reason.startswith("as it was; names like tmp-# also come from elsewhere: 16")


@pytest.mark.parametrize(
    ("unknown", "native", "outcome", "text"),
    [
        (1, 0, "inconclusive", "as it was; 1 entry of unknown origin, which Python in this process did not create"),
        (3, 0, "inconclusive", "as it was; 3 entries of unknown origin, which Python in this process did not create"),
        (0, 1, "over_budget", "as it was"),
        (2, 1, "over_budget", "as it was"),
    ],
)
def test_a_level_is_exceeded_by_what_was_made_here_alone(
    folder: Folder, unknown: int, native: int, outcome: str, text: str
) -> None:
    for number in range(unknown + native):
        Path(folder.path, f"one-{number}").touch()
    folder.relist(1)
    for number in range(native):
        folder.provenance.native[f"one-{number}"] = None
    verdict = said(folder, "over_budget", 20)
    assert verdict
    assert (verdict.outcome, verdict.reason) == (outcome, text)


def test_what_was_extrapolated_is_growth_and_stands(folder: Folder) -> None:
    verdict = Verdict("disk", "over_budget", kind="predicted")
    assert account_for_makers(verdict, Budget("disk", 0), entry_makers(folder), final=True) is verdict
