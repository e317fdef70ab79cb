"""What allure-pytest writes of judged tests is what it writes of plain ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from projects import Project
from variants import variants

SUITE = """
    import os
    import allure
    import pytest

    KEPT = []

    @pytest.fixture
    def page():
        allure.attach("opened", name="page")
        yield
        print("closed")

    @pytest.mark.parametrize("n", [1])
    @pytest.mark.object_budget(0)
    def test_clean(n, page):
        print("hello")
        allure.dynamic.tag("quick")
        with allure.step("look"):
            allure.attach("seen", name="picture")

    @pytest.mark.fd_budget(0)
    def test_fails():
        allure.attach("seen", name="picture")
        assert 0

    @pytest.mark.fd_budget(0)
    def test_leaks():
        allure.attach("seen", name="picture")
        KEPT.append(os.open(os.devnull, os.O_RDONLY))
"""
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
    project.write("test_it.py", SUITE)
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
