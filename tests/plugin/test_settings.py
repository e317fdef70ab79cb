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
