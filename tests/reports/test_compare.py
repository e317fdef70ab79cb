"""Two reports of real sessions compared: by the command, and by a session that takes the earlier one as its baseline."""

from __future__ import annotations

import platform
import re
import shutil
from pathlib import Path

import pytest

from projects import Project
from pytest_leakcheck.cli import main

LIBRARY = """
    import os

    FILES, ROWS, NAMES, PAGES, CACHE = [], [], [], [], []

    def open_file(times=1): FILES.extend(os.open(__file__, os.O_RDONLY) for _ in range(times))
    def add_row(): ROWS.append([])
    def name(): NAMES.append([1])
    def page(): PAGES.append(set())
    def cache(): pass
"""
SUITE = """
    import library

    def test_opens(): library.open_file()
    def test_adds(): library.add_row()
    def test_names(): library.name()
    def test_pages(): library.page()
    def test_caches(): library.cache()
"""
ALL = ("--leakcheck-scope=all", "--leakcheck-no-baseline")


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project(tmp_path_factory.mktemp("old"))
    project.write("library.py", LIBRARY)
    project.run_test(SUITE, *ALL)
    return Path(shutil.copy(project.folder / "findings.json", project.folder / "old.json"))


def change(project: Project) -> None:
    library = LIBRARY.replace("cache(): pass", "cache(): CACHE.append([])").replace("ROWS.append([])", "pass")
    project.write("library.py", library)
    project.write("test_it.py", SUITE.replace("open_file()", "open_file(2)"))


def test_each_cause_is_new_grown_the_same_fixed_or_not_measured(
    project: Project, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(project)
    project.run(*ALL, "-k", "not pages")
    new = project.folder / "findings.json"
    assert main(["compare", str(old), str(new)]) == 1
    # The six digits of the cause are left out.
    lines = [re.sub(r"\b[0-9a-f]{6}\b", "", line).split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["new", "object", "+1.0/iter", "library.CACHE", "test_it.py::test_caches"],
        ["grown", "fd", "was", "+1.0/iter,", "is", "+2.0/iter", "library.FILES", "test_it.py::test_opens"],
        ["same", "object", "+1.0/iter", "library.NAMES", "test_it.py::test_names"],
        ["fixed", "object", "+1.0/iter", "library.ROWS", "test_it.py::test_adds"],
        ["not", "measured", "object", "+1.0/iter", "library.PAGES", "test_it.py::test_pages"],
    ]
    assert main(["compare", str(new), str(new)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["same"] * 3


@pytest.mark.laboratory
def test_an_earlier_report_is_a_baseline(project: Project, old: Path) -> None:
    project.write("library.py", LIBRARY)
    ran = project.run_test(SUITE, *ALL[:1], f"--leakcheck-baseline={old}")
    assert ran.last_line == "5 passed"
    assert "1 ok · 4 known" in ran.text
    change(project)
    ran = project.run(*ALL[:1], f"--leakcheck-baseline={old}")
    assert ran.last_line == "2 failed, 5 passed"
    assert "known leak: was +1.0/iter, is +2.0/iter" in ran.one_line
    assert "\nfixed: library.ROWS\n" in ran.text
    before = old.read_bytes()
    refused = project.run(*ALL[:1], f"--leakcheck-baseline={old}", "--leakcheck-update-baseline")
    assert (refused.status, "old.json is a JSON report: name a file of known leaks, or none" in refused.text) == (
        4,
        True,
    )
    assert old.read_bytes() == before


def test_what_cannot_be_compared_is_said(project: Project, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = old.read_text(encoding="utf-8")
    python = f'"python": "{platform.python_version()}"'
    other = project.write("other.json", text.replace(python, '"python": "3.9.2"', 1))
    assert main(["compare", str(other), str(old)]) == 0
    assert capsys.readouterr().out.startswith("not the same conditions: Python: 3.9 and 3.")
    wrong = project.write("wrong.json", "{}")
    assert main(["compare", str(wrong), str(old)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"pytest-leakcheck compare: {wrong}: not a report: ")
    assert said.count("\n") == 1
    # Killed in the midst of the last line.
    killed = project.write("killed.json", text[:-20])
    assert main(["compare", str(killed), str(old)]) == 0
    compared = capsys.readouterr()
    assert compared.err == (
        f"pytest-leakcheck compare: {killed}: the run did not end (no line of the session): it has 5 findings\n"
    )
    assert compared.out.count("same ") == 4
    assert main(["compare", str(old), "nowhere.json"]) == 2
    assert capsys.readouterr().err == "pytest-leakcheck compare: nowhere.json: No such file or directory\n"
