"""A session that is killed leaves every finding that it had made, and no earlier report in its place."""

from __future__ import annotations

import subprocess
import sys

import pytest

from projects import Project
from pytest_leakcheck.report.json_file import FirstLine, read, to_line
from variants import variants

TESTS = """
    import os
    import signal

    import pytest

    KEPT = []

    @pytest.mark.fd_budget(0)
    def test_leaky():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    def test_clean():
        os.close(os.open(__file__, os.O_RDONLY))

    def test_dies():
        {dies}

    @pytest.mark.fd_budget(0)
    def test_never_runs():
        pass
"""


@pytest.mark.parametrize(
    "dies",
    variants(
        ["os.kill(os.getpid(), signal.SIGKILL)"],
        ["os.kill(os.getpid(), signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGSEGV)", "os._exit(3)"],
    ),
)
def test_what_was_found_before_is_in_the_report(project: Project, dies: str) -> None:
    project.write("test_it.py", TESTS.format(dies=dies))
    report = project.write("report.json", to_line(FirstLine({})))
    project.run("--leakcheck", f"--leakcheck-json={report}", leakcheck=False)
    partial = read(report)
    assert partial.session is None
    assert [(one.test, one.verdict.outcome) for one in partial.findings] == [
        ("test_it.py::test_leaky", "leak"),
        ("test_it.py::test_clean", "ok"),
    ]
    made = subprocess.run(
        [sys.executable, "-m", "pytest_leakcheck", "report", str(report), "--no-open", "--out", "out"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    said = "the run did not end (no line of the session): it has 2 findings"
    assert (made.returncode, made.stderr) == (0, f"pytest-leakcheck report: {report}: {said}\n")
    page = next((project.folder / "out").iterdir()).read_text(encoding="utf-8")
    assert "interrupted" in page
    # A session takes what was found as known.
    project.write("test_it.py", TESTS.format(dies="pass").replace("fd_budget(0)", "leakcheck"))
    judged = project.run(f"--leakcheck-baseline={report}")
    assert judged.last_line == "3 passed, 1 known"
    assert said in judged.one_line


def test_on_ctrl_c_the_report_is_whole(project: Project) -> None:
    project.write("test_it.py", TESTS.format(dies="os.kill(os.getpid(), signal.SIGINT)"))
    report = project.folder / "report.json"
    project.run("--leakcheck", f"--leakcheck-json={report}", leakcheck=False)
    whole = read(report)
    assert (len(whole.findings), whole.notice) == (2, "")
