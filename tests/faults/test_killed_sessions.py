"""A session that is killed leaves every finding that it had made, marked as partial, and no earlier report in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from projects import Project
from pytest_leakcheck.report.json_file import read
from variants import variants

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

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
def test_what_was_found_before_is_in_the_partial_report(project: Project, dies: str) -> None:
    project.write("test_it.py", TESTS.format(dies=dies))
    report = project.write("report.json", "earlier")
    project.run("--leakcheck", f"--leakcheck-json={report}", leakcheck=False)
    assert not report.exists()
    assert Path(f"{report}.old").read_text() == "earlier"
    partial = read(Path(f"{report}.partial").read_text(encoding="utf-8"))
    assert partial.partial
    assert [(one.test, one.verdict.outcome) for one in partial.findings] == [
        ("test_it.py::test_leaky", "leak"),
        ("test_it.py::test_clean", "ok"),
    ]
    made = subprocess.run(
        [sys.executable, "-m", "pytest_leakcheck", "report", f"{report}.partial", "--no-open", "--out", "out"],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    page = next((project.folder / "out").iterdir()).read_text(encoding="utf-8")
    assert "interrupted" in page
    # The same without the fault: a whole report, and nothing beside it.
    project.write("test_it.py", TESTS.format(dies="pass"))
    project.run("--leakcheck", f"--leakcheck-json={report}", leakcheck=False)
    whole = read(report.read_text(encoding="utf-8"))
    assert (len(whole.findings), whole.partial) == (3, False)
    assert [path.name for path in project.folder.glob("report.json*")] == ["report.json"]


def test_on_ctrl_c_the_report_is_whole(project: Project) -> None:
    project.write("test_it.py", TESTS.format(dies="os.kill(os.getpid(), signal.SIGINT)"))
    report = project.folder / "report.json"
    project.run("--leakcheck", f"--leakcheck-json={report}", leakcheck=False)
    assert len(read(report.read_text(encoding="utf-8")).findings) == 2
    assert [path.name for path in project.folder.glob("report.json*")] == ["report.json"]
