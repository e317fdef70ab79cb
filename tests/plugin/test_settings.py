"""Effort comes from the command line, then the mark, then the configuration; both tables of pyproject are read."""

from __future__ import annotations

import pytest

from projects import Project

CLEAN = """
    import pytest
    @pytest.mark.fd_budget(0)
    {mark}
    def test_it(): pass
"""


def test_precedence(project: Project) -> None:
    mark = "@pytest.mark.leakcheck(iterations=30, warmup=1, resources=['fd'])"
    project.write("test_it.py", CLEAN.format(mark=""))
    project.write("pytest.ini", "[pytest]\nleakcheck_iterations = 20\nleakcheck_warmup = 2\n")
    assert _effort(project) == (20, 2)
    assert _effort(project, "-o", "leakcheck_iterations=25") == (25, 2)
    project.write("test_it.py", CLEAN.format(mark=mark))
    assert _effort(project) == (30, 1)
    assert _effort(project, "--leakcheck-iterations=40") == (40, 1)
    assert _effort(project, "--leakcheck-iterations=40", "--leakcheck-warmup=5") == (40, 5)


def _effort(project: Project, *arguments: str) -> tuple[int, int]:
    outcome = project.run(*arguments)
    assert outcome.status == 0, outcome.text
    return outcome.finding("test_it")["iterations"], outcome.recordings[0]["warmup"]


@pytest.mark.parametrize("table", ["tool.pytest", "tool.pytest.ini_options"])
def test_switched_on_in_the_configuration(project: Project, table: str) -> None:
    (project.folder / "pytest.ini").unlink()
    project.write(
        "pyproject.toml", f"[{table}]\nleakcheck = true\nleakcheck_max_time = 5.5\nleakcheck_iterations = 15\n"
    )
    project.write("test_it.py", CLEAN.format(mark=""))
    outcome = project.run("--leakcheck-json=findings.json", leakcheck=False)
    assert "leakcheck: 15 iterations, at most 5.5 s per test" in outcome.text
    assert outcome.finding("test_it")["iterations"] == 15


def test_the_closest_mark_wins(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import os
        import pytest
        pytestmark = pytest.mark.fd_budget(0)
        KEPT = []

        @pytest.fixture(scope="module", autouse=True)
        def clean_up():
            yield
            for file in KEPT: os.close(file)

        def settle():
            if len(KEPT) < 5:
                KEPT.append(os.open(__file__, os.O_RDONLY))

        @pytest.mark.leakcheck(warmup=3)
        @pytest.mark.fd_budget(2)
        class TestClose:
            def test_close(self): settle()
        """,
    )
    assert project.run().verdicts["test_close", "fd"] == "ok"
    text = (project.folder / "test_it.py").read_text()
    project.write("test_it.py", text.replace("@pytest.mark.fd_budget(2)\n", ""))
    assert project.run().verdicts["test_close", "fd"] == "over_budget"


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


@pytest.mark.laboratory
def test_advice_names_the_setting_that_limits_the_time(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import time
        import pytest

        pytestmark = pytest.mark.fd_budget(0)

        def test_by_the_option(): time.sleep(0.1)

        @pytest.mark.timeout(1)
        def test_by_the_timeout(): time.sleep(0.1)

        @pytest.mark.leakcheck(max_time=0.2)
        @pytest.mark.timeout(10)
        def test_by_the_mark(): time.sleep(0.1)
        """,
    )
    outcome = project.run("-o", "leakcheck_max_time=0.9")
    assert "--leakcheck-max-time=" in outcome.finding("test_by_the_option")["advice"]
    assert "pytest-timeout" not in outcome.finding("test_by_the_option")["advice"]
    advice = outcome.finding("test_by_the_timeout")["advice"]
    assert "a timeout of " in advice
    assert advice.endswith(" s, because pytest-timeout limits this test")
    # The option overrides the mark.
    assert "--leakcheck-max-time=" in outcome.finding("test_by_the_mark", "process")["advice"]
