"""Wrong use is said before a test runs: what was seen, whose it is, what is valid."""

from __future__ import annotations

import re

import pytest

from projects import Outcome, Project

COLLECTION_ERROR = 2
USAGE_ERROR = 4


def test_a_wrong_mark(project_here: Project) -> None:
    _write_marked(project_here, "leakcheck(iteration=5)")
    message = (
        "test_it.py::test_it: leakcheck(iteration=5): has no keyword 'iteration'. Did you mean 'iterations'? "
        "Valid: leakcheck(iterations=, warmup=, max_time=, min_time=, isolate=, resources=)"
    )
    _check_error(project_here.run_here(), message)


def test_a_wrong_mark_in_workers(project_here: Project) -> None:
    _write_marked(project_here, "fd_budget(-1)")
    _check_error(project_here.run_here("-n", "2"), "test_it.py::test_it: fd_budget(-1): -1 is negative")


def _write_marked(project: Project, mark: str) -> None:
    project.write("test_it.py", f"import pytest\n@pytest.mark.{mark}\ndef test_it(): print('ran')\n")


def _check_error(outcome: Outcome, message: str) -> None:
    assert " ".join(message.split()) in " ".join(outcome.text.split())
    assert outcome.status in (1, COLLECTION_ERROR)
    assert "1 error" in outcome.text
    assert "1 passed" not in outcome.text
    assert "Traceback" not in outcome.text
    assert "INTERNALERROR" not in outcome.text


def test_a_mark_added_by_a_conftest(project_here: Project) -> None:
    project_here.write(
        "conftest.py",
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items: item.add_marker(pytest.mark.fd_budget("many"))
        """,
    )
    outcome = project_here.run_test_here("def test_it(): pass")
    assert outcome.status == USAGE_ERROR
    assert "ERROR: test_it.py::test_it: fd_budget(" in outcome.text


def test_all_wrong_marks_are_named_at_once(project_here: Project) -> None:
    text = project_here.run_test_here("""
        import pytest
        @pytest.mark.fd_budget("many")
        def test_one(): pass
        @pytest.mark.fd_budget(1, 2)
        def test_two(): pass
        """).text
    assert "test_it.py::test_one: fd_budget" in text
    assert "test_it.py::test_two: fd_budget(1, 2): takes one level, 2 arguments were given" in text


@pytest.mark.parametrize("table", ["pytest.ini", "tool.pytest", "tool.pytest.ini_options"])
def test_a_wrong_setting_names_its_file(project_here: Project, table: str) -> None:
    project_here.write("test_it.py", "def test_it(): pass")
    if table == "pytest.ini":
        name = project_here.write("pytest.ini", "[pytest]\nleakcheck_warmup = 0\n").name
    else:
        (project_here.folder / "pytest.ini").unlink()
        name = project_here.write("pyproject.toml", f"[{table}]\nleakcheck_warmup = 0\n").name
    # Without --leakcheck too: a wrong value is found on the first run.
    outcome = project_here.run_here(leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert f"leakcheck_warmup = 0 ({name}): must be a whole number from 1 to 100,000" in outcome.text


def test_a_wrong_flag(project_here: Project) -> None:
    outcome = project_here.run_test_here("def test_it(): pass", "--leakcheck-iterations=many", leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert "--leakcheck-iterations=many (command line): must be a whole number from 0 to 100,000" in outcome.text


@pytest.mark.parametrize("leakcheck", [True, False])
def test_a_misspelt_mark(project_here: Project, leakcheck: bool) -> None:
    project_here.write(
        "conftest.py",
        """
        from pytest_leakcheck import Probe

        def pytest_leakcheck_probes(config): return [Probe("connection", read=lambda: 0)]
        """,
    )
    project_here.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.fd_budgett(0)
        @pytest.mark.leak_check
        @pytest.mark.memory_budget("1 MiB")
        @pytest.mark.connections_budget(0)
        @pytest.mark.slow
        @pytest.mark.healthcheck
        @pytest.mark.fd_budget(0)
        def test_it(): pass
        """,
    )
    for options in ((), ("-n", "1")) if leakcheck else ((),):
        text = project_here.run_here(*options, leakcheck=leakcheck).text
        said = re.findall(r"(?m)^(test_it.py:\d+): pytest-leakcheck has no mark '(\w+)'. (.*)$", text)
        assert said[0] == ("test_it.py:3", "fd_budgett", "Did you mean 'fd_budget'?")
        assert said[1] == ("test_it.py:4", "leak_check", "Did you mean 'leakcheck'?")
        assert said[2][1] == "memory_budget"
        assert said[2][2].startswith("Valid are fd_budget, thread_budget, ")
        assert said[3][1:] == ("connections_budget", "Did you mean 'connection_budget'?")
        # Those of the project are not ours to judge.
        assert len(said) == 4
    project_here.write("test_it.py", "import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass")
    assert "has no mark" not in project_here.run_here(leakcheck=leakcheck).text


def test_a_wrong_type_in_toml(project_here: Project) -> None:
    (project_here.folder / "pytest.ini").unlink()
    project_here.write("pyproject.toml", '[tool.pytest]\nleakcheck_iterations = "7"\n')
    outcome = project_here.run_test_here("def test_it(): pass", leakcheck=False)
    assert outcome.status == USAGE_ERROR
    assert "leakcheck_iterations" in outcome.text
    assert "expects an int" in outcome.text


def test_a_report_that_cannot_be_written(project_here: Project) -> None:
    project_here.write("test_it.py", "def test_it(): print('ran')")
    (project_here.folder / "folder").mkdir()
    for path, reason in (("missing/a.json", "No such file or directory"), ("folder", "Is a directory")):
        outcome = project_here.run_here("--leakcheck", f"--leakcheck-json={path}", leakcheck=False)
        assert outcome.status == USAGE_ERROR
        assert f"--leakcheck-json={path} (command line): " in outcome.text
        assert reason in outcome.text
        assert "name a file in a writable folder" in outcome.text
        assert "Traceback" not in outcome.text


def test_a_level_for_steps_that_cannot_be_read(project_here: Project) -> None:
    project_here.write(
        "test_it.py",
        """
        def test_steps(leakcheck):
            for step in leakcheck.steps(fdd=0): pass
        def test_budget(leakcheck):
            with leakcheck.budget(heap="much"): pass
        """,
    )
    for leakcheck in (True, False):
        outcome = project_here.run_here(leakcheck=leakcheck)
        assert (
            "fdd=0: no such resource. Did you mean 'fd'? Valid resources are fd, thread, process, shm, disk, task, heap, object, block, arrow, vram, mmap, rss"
            in outcome.text
        )
        assert "heap='much': 'much' is not a size" in outcome.text
        # The user's own lines, and none of the plugin's.
        assert re.findall(r"(?m)^(\S+\.py):\d+: \w*Error", outcome.text) == ["test_it.py", "test_it.py"]
        assert "fixture.py" not in outcome.text
        assert "2 failed" in outcome.text
