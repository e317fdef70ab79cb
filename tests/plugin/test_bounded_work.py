"""Work that fills something with a bound, and leaks beside it: no false alarm when it is full, and no leak hidden by it."""

from __future__ import annotations

import sys

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")


@pytest.fixture(scope="module")
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("leaks"))
    project.copy("arms_beside_bounded_work.py", "test_leaks.py")
    return project.run()


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    project = Project(tmp_path_factory.mktemp("last"))
    project.copy("arms_that_leak_late.py", "test_last.py")
    return project.run("--leakcheck-min-time=3")


@pytest.mark.parametrize("log", ["in_deque", "in_lru_cache"])
@pytest.mark.parametrize(
    ("leak", "resource", "slope"),
    [("fd", "fd", 1), ("4096", "heap", 4096), ("100000", "heap", 100_000), ("task", "task", 1)],
)
def test_a_leak_beside_a_bounded_log_is_red(leaks: Outcome, log: str, leak: str, resource: str, slope: float) -> None:
    found = leaks.finding(f"test_beside[leak_{leak}-{log}]", resource)
    assert found["verdict"] == "leak"
    assert found["slope"] == pytest.approx(slope, rel=0.1)


@pytest.mark.parametrize("log", ["in_deque", "in_lru_cache"])
def test_the_log_alone_is_green(leaks: Outcome, log: str) -> None:
    of_it = [one for one in leaks.findings if one["test"].endswith(f"test_beside[leak_nothing-{log}]")]
    assert {one["verdict"] for one in of_it} == {"ok"}
    (object_,) = (one for one in of_it if one["resource"] == "block")
    assert object_["reason"].startswith("cache filling: ")


def test_a_cache_that_cannot_be_filled_is_green_up_to_a_level_that_it_would_exceed(leaks: Outcome) -> None:
    found = leaks.finding("test_cache_that_cannot_be_filled", "heap")
    assert found["verdict"] == "ok"
    assert found["reason"].startswith("cache filling: lru_cache of page: ")
    assert " of 100,000, 3.0 KiB each, at most 29" in found["reason"]
    assert found["floor"] > 1000, "a leak smaller than the entries would not be seen"
    above = leaks.finding("test_cache_above_the_level_when_full", "heap")
    assert above["verdict"] in ("inconclusive", "over_budget")


def test_a_full_deque_whose_new_entries_are_heavier_is_not_red(leaks: Outcome) -> None:
    of_it = [one for one in leaks.findings if one["test"].endswith("test_new_entries_are_heavier")]
    assert of_it
    assert {one["colour"] for one in of_it} <= {"green", "yellow"}


def test_a_zombie_is_a_leak_of_processes(leaks: Outcome) -> None:
    found = leaks.finding("test_zombie", "process")
    assert (found["verdict"], found["slope"]) == ("leak", 1)
    assert found["held"][0]["what"].startswith("zombie of ")
    assert leaks.verdicts["test_waited_for", "process"] == "ok"


@pytest.mark.laboratory
def test_what_grows_after_it_was_ok_is_red(last: Outcome) -> None:
    found = last.finding("test_leaks_after_a_while", "fd")
    assert (found["verdict"], found["slope"]) == ("leak", pytest.approx(0.5, rel=0.05))
    assert last.verdicts["test_opens_two_files_after_a_while", "fd"] == "ok"


@pytest.mark.laboratory
def test_shared_pages_that_no_allocator_counts_are_red(last: Outcome) -> None:
    found = last.finding("test_touches_a_new_page", "rss")
    assert found["verdict"] == "leak"
    assert found["slope"] == pytest.approx(4096, rel=0.1)
    assert last.verdicts["test_touches_one_page", "rss"] == "ok"
