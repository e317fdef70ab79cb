"""Known leaks of installed packages: yellow with their reason, and red once anything differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from projects import Outcome, Project

LEAKY = "ROWS = []\ndef add_row(): ROWS.append([])\n"
FIXED = LEAKY.replace("ROWS.append([])", "return []")
SUITE = """
    import pytest
    import leakylib

    def test_adds(): leakylib.add_row()
    {mark}
"""
ALL = ("--leakcheck-scope=all", "--leakcheck-min-time=0", "--leakcheck-resources=object")
LINE = "leaky-lib<2: leakylib.ROWS"

Run: TypeAlias = Callable[..., Outcome]


@pytest.fixture
def run(project: Project) -> Run:
    def run_it(*arguments: str, ini: str = "", version: str = "1.0", source: str = LEAKY, mark: str = "") -> Outcome:
        folder = project.folder / "lib" / "site-packages"
        (folder / "leaky_lib.dist-info").mkdir(parents=True, exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: leaky-lib\nVersion: {version}\n"
        (folder / "leaky_lib.dist-info" / "METADATA").write_text(metadata, encoding="utf-8")
        (folder / "leakylib.py").write_text(source, encoding="utf-8")
        project.write("pytest.ini", f"[pytest]\naddopts = -p no:hypothesispytest -p no:anyio -p no:asyncio\n{ini}")
        return project.run_test(SUITE.format(mark=mark), *ALL, *arguments, PYTHONPATH=str(folder))

    return run_it


def test_a_leak_that_a_line_of_the_project_lists_fails_no_test(run: Run) -> None:
    red = run()
    assert (red.status, red.finding("test_adds", "object")["colour"]) == (1, "red")
    assert red.finding("test_adds", "object")["owner"]["name"] == "leakylib.ROWS"
    for options in ((), ("-n", "2"), ("--leakcheck-isolate",)):
        known = run(*options, ini=f"leakcheck_library = {LINE}")
        found = known.finding("test_adds", "object")
        assert (known.status, found["verdict"], found["colour"]) == (0, "leak", "yellow"), known.text
        assert found["third_party"] == f"known: {LINE} (leakcheck_library)"
        assert f"third-party, known: {LINE} (leakcheck_library)" in known.one_line
        assert "1 test: 1 third-party · " in known.one_line
    assert run(source=FIXED, ini=f"leakcheck_library = {LINE}").finding("test_adds", "object")["verdict"] == "ok"


@pytest.mark.parametrize(
    ("ini", "version"),
    [
        (f"leakcheck_library = {LINE}", "2.0"),
        (f"leakcheck_library = {LINE}\nleakcheck_library_leaks = false", "1.0"),
        ("leakcheck_library = leaky-lib<2: leakylib.ROW", "1.0"),
        ("leakcheck_library = other-lib: leakylib.ROWS", "1.0"),
    ],
    ids=["another version", "turned off", "another owner", "another package"],
)
def test_it_is_red_where_anything_differs(run: Run, ini: str, version: str) -> None:
    ran = run(ini=ini, version=version)
    assert (ran.status, ran.finding("test_adds", "object")["colour"]) == (1, "red"), ran.text


def test_an_explicit_budget_is_never_taken_back(run: Run) -> None:
    mark = "@pytest.mark.object_budget(0)\n    def test_marked(): leakylib.add_row()"
    ran = run(ini=f"leakcheck_library = {LINE}", mark=mark)
    colours = {one["test"].rpartition("::")[2]: one["colour"] for one in ran.findings if one["verdict"] == "leak"}
    assert colours == {"test_adds": "yellow", "test_marked": "red"}


def test_an_update_does_not_write_it_to_the_file_of_known_leaks(run: Run, project: Project) -> None:
    written = project.folder / "leakcheck-baseline.json"
    run("--leakcheck-update-baseline", ini=f"leakcheck_library = {LINE}")
    assert json.loads(written.read_text(encoding="utf-8"))["known"] == []
    run("--leakcheck-update-baseline", ini=f"leakcheck_library = {LINE}\nleakcheck_library_leaks = false")
    (entry,) = json.loads(written.read_text(encoding="utf-8"))["known"]
    assert entry["owner"] == "leakylib.ROWS"


def test_a_session_without_a_leak_reads_no_list(project: Project, tmp_path: Path) -> None:
    project.write(
        "conftest.py",
        f"""
        import sys

        def pytest_unconfigure():
            with open({str(tmp_path / "loaded")!r}, "w") as file:
                file.write(str("pytest_leakcheck.baseline.library_leaks" in sys.modules))
        """,
    )
    assert project.run_test("def test_it(): pass", *ALL).status == 0
    assert (tmp_path / "loaded").read_text(encoding="utf-8") == "False"
