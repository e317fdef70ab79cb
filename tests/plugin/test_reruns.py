"""pytest-rerunfailures: the same outcomes and as many runs of a failing body as without the plugin; a leak is final."""

from __future__ import annotations

import re

import pytest

from projects import Project
from variants import variants

SUITE = """
    import os
    from pathlib import Path
    import pytest

    KEPT, RUNS = [], Path(__file__).with_name("runs")

    def attempt(name):
        with RUNS.open("a") as file: file.write(f"{name} ")
        return RUNS.read_text().split().count(name)

    def test_flaky(): assert attempt("flaky") == 3

    def test_fails(): assert attempt("fails") == 0

    @pytest.mark.flaky(reruns=1)
    def test_marked_flaky(): assert attempt("marked") == 2

    @pytest.fixture(scope="module")
    def server(): assert attempt("server") == 2

    def test_set_up(server): pass

    class TestIt:
        def test_state(self):
            assert not hasattr(self, "been_here")
            self.been_here = True
            assert attempt("state") == 2

    def test_passes(): pass

    def test_subtests(subtests):
        with subtests.test(): assert attempt("subtests") == 0
"""
LEAK = """
    def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))
"""
FAILING = ("flaky", "fails", "marked", "server", "state")


def outcomes(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(?m)^(PASSED|FAILED|LEAK|RERUN|ERROR) test_it\.py::(\S+)", text)


@pytest.mark.parametrize("arguments", variants([()], [("-n", "2")]))
def test_a_failed_first_iteration_is_the_first_attempt(project: Project, arguments: tuple[str, ...]) -> None:
    runs, said = {}, {}
    for judged in (False, True):
        project.write("test_it.py", SUITE)
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
    project.write("test_it.py", SUITE + LEAK)
    project.write("runs", "")
    ran = project.run("--reruns=2", "-rA", "--leakcheck-scope=all", *arguments, leakcheck=False)
    assert [row for row in outcomes(ran.text) if row[1] == "test_leak"] == [("LEAK", "test_leak")], ran.text
    assert ran.text.count("LeakError: ") == 1


def test_each_attempt_has_one_line(project: Project) -> None:
    ran = project.run_test(SUITE, "--reruns=2", "-v", "--leakcheck-scope=all", "-k", "flaky or passes", leakcheck=False)
    lines = re.findall(r"(?m)^test_it\.py::(test_flaky|test_passes) ([A-Z]+)", ran.text)
    assert lines == [
        ("test_flaky", "RERUN"),
        ("test_flaky", "RERUN"),
        ("test_flaky", "PASSED"),
        ("test_passes", "PASSED"),
    ]
