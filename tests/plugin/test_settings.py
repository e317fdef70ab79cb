"""Both tables of pyproject are read; what fails the session depends on the options and on CI."""

from __future__ import annotations

import pytest

from projects import Project


@pytest.mark.parametrize("table", ["tool.pytest", "tool.pytest.ini_options"])
def test_switched_on_in_the_configuration(project: Project, table: str) -> None:
    (project.folder / "pytest.ini").unlink()
    project.write(
        "pyproject.toml", f"[{table}]\nleakcheck = true\nleakcheck_max_time = 5.5\nleakcheck_iterations = 15\n"
    )
    project.write("test_it.py", "import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass")
    outcome = project.run("--leakcheck-json=findings.json", leakcheck=False)
    assert "leakcheck: 15 iterations, at most 5.5 s per test" in outcome.text
    assert outcome.finding("test_it")["iterations"] == 15


@pytest.mark.laboratory
def test_fail_on_and_ci(project: Project) -> None:
    """A test too slow for its budget is yellow, and red where a pipeline would otherwise take it for green."""
    project.write(
        "test_it.py",
        """
        import time
        import pytest
        @pytest.mark.fd_budget(0)
        def test_slow(): time.sleep(0.1)
        """,
    )
    # Time for 12 iterations at most, and on a busy machine still for one after the warm-up.
    slow = ("--leakcheck-max-time=1.2", "--leakcheck-warmup=1")
    here = project.run(*slow)
    assert (here.status, here.finding("test_slow")["verdict"]) == (0, "inconclusive")
    assert "iterations, 13 needed" in here.finding("test_slow")["reason"]
    pipeline = project.run(*slow, CI="true")
    assert (pipeline.status, pipeline.finding("test_slow")["verdict"]) == (1, "inconclusive")
    chosen = project.run(*slow, "--leakcheck-fail-on=leak", CI="true")
    assert chosen.status == 0
