"""Hypothesis, pytest-rerunfailures and allure-pytest: as plain pytest shows them, and judged."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from projects import Project
from variants import variants

_HEAD = """
    import os, unittest
    import pytest
    from hypothesis import HealthCheck, given, settings, strategies as st
    from hypothesis.database import InMemoryExampleDatabase
    from hypothesis.stateful import RuleBasedStateMachine, rule
    KEPT = []
"""


@pytest.fixture
def given_project(project: Project) -> Project:
    """With Hypothesis's own plugin."""
    project.write("pytest.ini", "[pytest]\naddopts = -p no:anyio -p no:asyncio\n")
    return project


def test_methods_of_classes(given_project: Project) -> None:
    given_project.copy("program_with_hypothesis.py")
    outcome = given_project.run()
    assert outcome.last_line == "1 failed, 6 passed", outcome.text
    assert outcome.verdicts.pop(("test_leaks", "fd")) == "leak"
    assert outcome.finding("test_leaks")["slope"] == 5.0
    assert sorted(outcome.verdicts.values()) == ["leak"] + ["ok"] * 6
    # Without its plugin too, where the second of two parameters fails by itself.
    alone = given_project.run("-p", "no:hypothesispytest", "-k", "not parameters")
    assert alone.last_line == "1 failed, 4 passed, 2 deselected", alone.text
    assert alone.verdicts.items() <= outcome.verdicts.items()


def test_what_differs_between_the_iterations(given_project: Project) -> None:
    """The first is the user's; the others repeat examples of their own, and leave no trace in settings or database."""
    outcome = given_project.run_test(
        _HEAD
        + """
    DATABASE = InMemoryExampleDatabase()
    SAVED = []
    save = DATABASE.save
    DATABASE.save = lambda *given: (SAVED.append(len(RUNS)), save(*given))
    OWN = settings(max_examples=20, database=DATABASE, deadline=5000, suppress_health_check=[HealthCheck.too_slow])
    RUNS = []

    class TestIt:
        @pytest.fixture(autouse=True)
        def run(self): RUNS.append([])

        @OWN
        @given(st.integers(0, 10**9))
        @pytest.mark.fd_budget(0)
        def test_it(self, number): RUNS[-1].append(number)

        def test_after(self):
            first, *others = RUNS[:-1]
            assert len(others) > 13
            assert all(one == others[0] for one in others)
            assert first != others[0]
            assert {len(one) for one in RUNS[:-1]} == {20}
            assert set(SAVED) <= {1}
            assert TestIt.test_it._hypothesis_internal_use_settings is OWN
    """
    )
    assert outcome.last_line == "2 passed", outcome.text


def test_a_failure_is_the_test_s_own(given_project: Project) -> None:
    """Found, made small and saved as in plain pytest; what only a later iteration runs into is no failure."""
    outcome = given_project.run_test(
        _HEAD
        + """
    pytestmark = pytest.mark.fd_budget(0)

    class TestIt:
        @given(st.integers())
        def test_fails(self, number): assert number < 5

        @pytest.fixture
        def count(self): KEPT.append(1)

        @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
        @given(number=st.integers(0, 100))
        def test_later(self, count, number): assert number < 50 or len(KEPT) < 4
    """
    )
    assert outcome.last_line == "1 failed, 1 passed", outcome.text
    assert "number=5," in outcome.text
    assert outcome.finding("test_later")["reason"].startswith("not repeatable: iteration 4 ended with AssertionError")
    assert (given_project.folder / ".hypothesis").is_dir()


def test_it_is_not_loaded_for_others(project: Project) -> None:
    ran = project.run_test("""
        import sys
        import pytest

        @pytest.mark.fd_budget(0)
        def test_it(): assert "hypothesis" not in sys.modules
        """)
    assert ran.last_line == "1 passed"


LEAK = """
import os
def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))
"""
FAILING = ("flaky", "fails", "marked", "server", "state")


def outcomes(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(?m)^(PASSED|FAILED|LEAK|RERUN|ERROR) test_it\.py::(\S+)", text)


@pytest.mark.parametrize("arguments", variants([()], [("-n", "2")]))
def test_a_failed_first_iteration_is_the_first_attempt(project: Project, arguments: tuple[str, ...]) -> None:
    runs, said = {}, {}
    for judged in (False, True):
        project.copy("program_with_flaky_tests.py")
        project.write("runs", "")
        ran = project.run(
            "--reruns=2", "-rA", *arguments, *(["--leakcheck-scope=all"] if judged else []), leakcheck=False
        )
        words = (project.folder / "runs").read_text().split()
        runs[judged] = {name: words.count(name) for name in FAILING}
        said[judged] = sorted(row for row in outcomes(ran.text) if "subtests" not in row[1])
    assert said[True] == said[False], ran.text
    assert runs[True] == runs[False] == {"flaky": 3, "fails": 3, "marked": 2, "server": 2, "state": 2}
    # A leak is no failure to try again.
    path = project.copy("program_with_flaky_tests.py")
    path.write_text(path.read_text() + LEAK)
    project.write("runs", "")
    ran = project.run("--reruns=2", "-rA", "--leakcheck-scope=all", *arguments, leakcheck=False)
    leaky = [row for row in outcomes(ran.text) if row[1] == "test_leak"]
    assert sorted(leaky) == [("LEAK", "test_leak"), ("PASSED", "test_leak")], ran.text
    assert ran.text.count("LeakError: ") == 1


def test_each_attempt_has_one_line(project: Project) -> None:
    project.copy("program_with_flaky_tests.py")
    ran = project.run("--reruns=2", "-v", "--leakcheck-scope=all", "-k", "flaky or passes", leakcheck=False)
    lines = re.findall(r"(?m)^test_it\.py::(test_flaky|test_passes) ([A-Z]+)", ran.text)
    assert lines == [
        ("test_flaky", "RERUN"),
        ("test_flaky", "RERUN"),
        ("test_flaky", "PASSED"),
        ("test_passes", "PASSED"),
    ]


SIZES = """
    import pytest

    KEPT = []

    @pytest.mark.scaling_budget("mib", [1, 2, 4, 8], rss="O(1)")
    @pytest.mark.parametrize("kept", [False, True])
    def test_sizes(mib, kept):
        KEPT.append(bytearray(mib << 23 if kept else 1))
"""
# What a result lists in the same words in each run, and not at the same time or with the same names of files.
LISTS = ("steps", "attachments", "parameters", "labels", "links")


def results(project: Project) -> list[dict[str, Any]]:
    folder = project.folder / "results"
    return [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*-result.json")]


def summary(project: Project) -> tuple[dict[str, tuple[str, dict[str, list[str]]]], int]:
    """Status and names of what is listed, by test; and how many files of attachments and fixtures there are."""
    tests = {
        one["name"]: (one["status"], {name: [each["name"] for each in one.get(name, ())] for name in LISTS})
        for one in results(project)
    }
    files = [path for path in (project.folder / "results").iterdir() if not path.name.endswith("-result.json")]
    return tests, len(files)


@pytest.fixture
def allure_project(project: Project) -> Project:
    project.write("pytest.ini", "[pytest]\naddopts = --alluredir=results --clean-alluredir\n")
    project.copy("program_that_attaches.py")
    return project


@pytest.mark.parametrize("isolate", variants([False], [True]))
def test_results_are_those_of_a_plain_run(allure_project: Project, *, isolate: bool) -> None:
    assert "1 failed, 2 passed" in allure_project.run(leakcheck=False).text
    plain, files = summary(allure_project)
    judged = allure_project.run(*(["--leakcheck-isolate"] if isolate else []))
    assert judged.verdicts == {("test_clean[1]", "object"): "ok", ("test_leaks", "fd"): "leak"}
    assert len(results(allure_project)) == 3
    found, files_of_judged = summary(allure_project)
    status, lists = plain.pop("test_leaks")
    assert (status, found.pop("test_leaks")[0]) == ("passed", "failed")
    assert found == plain
    # The first run of the test that passes wrote an attachment, a fixture's attachment, the output and two containers.
    assert files <= files_of_judged <= files + 7
    assert lists["attachments"] == ["picture"]


@pytest.mark.laboratory
def test_the_result_of_a_scaled_test_has_its_verdict(allure_project: Project) -> None:
    allure_project.run_test(SIZES)
    tests = [(one["name"], one["status"]) for one in results(allure_project) if not one.get("parameters")]
    assert sorted(tests) == [("test_sizes[False]", "passed"), ("test_sizes[True]", "failed")]
