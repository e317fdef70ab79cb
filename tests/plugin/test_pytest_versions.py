"""The oldest supported pytest gives the verdicts of the newest, with subtests of pytest-subtests."""

from __future__ import annotations

import sys

import pytest

from projects import OLDEST, Project

VERDICTS = {
    "test_leaks": "leak",
    "test_closes": "ok",
    "test_cases[0]": "ok",
    "TestFixture::test_leaks": "leak",
    "TestUnit::test_passes": "ok",
    "test_leaks_in_a_subtest": "leak",
}


@pytest.mark.parametrize("python", [OLDEST, sys.executable], ids=["oldest", "newest"])
@pytest.mark.parametrize("more", [(), pytest.param(("--leakcheck-isolate",), marks=pytest.mark.laboratory)])
def test_the_verdicts_are_the_same(project: Project, python: str, more: tuple[str, ...]) -> None:
    project.copy("program_with_mixed_tests.py")
    ran = project.run("--tb=no", *more, python=python)
    found = {one["test"].partition("::")[2]: one["verdict"] for one in ran.findings}
    assert {name: found.get(name) for name in VERDICTS} == VERDICTS, ran.text
    assert "leak" not in {verdict for name, verdict in found.items() if name not in VERDICTS}, ran.text
    assert " · 3 leak (1 cause) · " in ran.one_line
    assert ran.status == 1


def test_a_table_that_the_oldest_ignores_is_named(project: Project) -> None:
    (project.folder / "pytest.ini").unlink()
    project.write("pyproject.toml", '[tool.pytest]\nleakcheck = true\naddopts = ["-q"]\n')
    warning = "pyproject.toml: pytest 8.4.0 ignores addopts, leakcheck in [tool.pytest]; move the table to"
    assert warning in project.run_test("def test_it(): pass", leakcheck=False, python=OLDEST).one_line
    project.write("pyproject.toml", '[tool.pytest.ini_options]\nleakcheck = true\naddopts = ["-q"]\n')
    assert "ignores" not in project.run(leakcheck=False, python=OLDEST).text
