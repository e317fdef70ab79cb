"""A test that forks and comes back in both processes: the child is not the session's, and repeats nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from projects import ROOT, Project
from variants import variants

# A byte for each time that the body is begun, in whichever process. The guard is for code that multiplies.
_COUNTED = """
    import os, sys, time, warnings
    from pathlib import Path
    import pytest

    def begin(name):
        path = Path(name)
        with path.open("a") as file: file.write("x")
        if path.stat().st_size > 60: os._exit(9)

    def fork():
        # Python 3.12 and later warn of a fork beside threads, such as that of pytest-rerunfailures.
        with warnings.catch_warnings(action="ignore"):
            child = os.fork()
        if child: os.waitpid(child, 0)
        return child
"""


def runs(folder: Path, name: str) -> int:
    return (folder / name).stat().st_size


@pytest.mark.parametrize("isolate", variants([()], [("--leakcheck-isolate",)]), ids=["in place", "isolated"])
def test_a_test_that_forks(project: Project, isolate: tuple[str, ...]) -> None:
    project.copy("program_that_forks.py")
    outcome = project.run(*isolate, "-rA")
    assert outcome.text.count("= 7 passed in ") == 1, outcome.text
    assert {one["verdict"] for one in outcome.findings} == {"ok"}
    # One warm-up, 13 judged, one logged; each in the process that pytest was started in.
    names = ("returns", "undone", "exits", "raises", "interrupted", "set_up", "waited", "after")
    assert {name: runs(project.folder, name) for name in names} == dict.fromkeys(names, 14)
    if not isolate:
        # A line for each child that came back.
        assert outcome.text.count(" was forked in a measured test ") == 5 * 14
    for name in ("returns", "exits", "raises", "interrupted", "in_set_up", "waited_for", "after"):
        assert outcome.text.count(f"PASSED test_it.py::test_{name}") == 1


def test_a_loop_that_forks(project: Project) -> None:
    """By the fixture: the child leaves at the end of the step, or where it raises."""
    outcome = project.run_test(
        _COUNTED
        + """
    def test_returns(leakcheck):
        for step in leakcheck.steps(13, fd=0):
            begin("returns")
            fork()

    def test_raises(leakcheck):
        for step in leakcheck.steps(13, fd=0):
            begin("raises")
            if not fork(): raise ValueError("in the child")

    def test_exits(leakcheck):
        for step in leakcheck.steps(13, fd=0):
            begin("exits")
            if not fork(): sys.exit()

    def test_after(): begin("after")
    """
    )
    assert outcome.last_line == "4 passed", outcome.text
    assert {one["verdict"] for one in outcome.findings} == {"ok"}
    assert [runs(project.folder, name) for name in ("returns", "raises", "exits", "after")] == [16, 16, 16, 1]


def test_over_sizes(project: Project) -> None:
    """In the process that runs one size: the child writes no second recording."""
    # Descriptors: how much memory a child has taken depends on when it is read.
    outcome = project.run_test(
        _COUNTED
        + """
    @pytest.mark.scaling_budget("n", [1, 2, 4], fd="O(1)")
    def test_it(n):
        begin("it")
        fork()
    """,
        "-rA",
    )
    assert outcome.last_line == "1 passed", outcome.text
    assert len(outcome.findings) == 1
    assert runs(project.folder, "it") <= 6


def test_a_measured_function_that_forks(tmp_path: Path) -> None:
    program = """
import os
from pathlib import Path
from pytest_leakcheck import measure

def work():
    with Path("work").open("a") as file: file.write("x")
    if Path("work").stat().st_size > 60: os._exit(9)
    child = os.fork()
    if child: os.waitpid(child, 0)

print(measure(work, iterations=13, warmup=1, fd=0).finding.verdict.outcome)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert runs(tmp_path, "work") == 14
    assert done.stderr.count(" was forked in a measured test ") == 14
