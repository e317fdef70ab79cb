"""What --leakcheck-json wrote, as a page: a leak red with its line and its cause, the fixed test green with its floor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from projects import HEAD, Project
from pytest_leakcheck.report.html.findings_page import page_of_findings
from pytest_leakcheck.report.json_file import ReportError, write

LEAKY = """
    @pytest.mark.fd_budget(0)
    def test_it():
        leak()
"""
FIXED = """
    @pytest.mark.fd_budget(0)
    def test_it():
        os.close(os.open(__file__, os.O_RDONLY))
"""

SIZES = """
    @pytest.mark.scaling_budget("n", [8, 16, 32], in_flight="<= 8")
    def test_it(n, leakcheck):
        leakcheck.gauge("in_flight", n)
"""


def measured(project: Project, body: str) -> str:
    project.write("test_it.py", HEAD + body)
    project.run()
    return (project.folder / "findings.json").read_text(encoding="utf-8")


def test_a_leak_and_its_mending(project: Project) -> None:
    page = page_of_findings(measured(project, LEAKY), "findings.json")
    (arm,) = page.arms
    assert (arm.name, arm.tone) == ("test_it.py::test_it", "bad")
    assert arm.verdicts == ("fd leak: +1.0/iter sustained over 17 iterations",)
    assert "test_it.py:4 in leak()" in arm.culprit
    (chart,) = arm.charts
    (curve,) = chart.curves
    assert [y - curve.points[0][1] for _x, y in curve.points] == list(range(18))
    assert curve.line is not None
    (x0, y0), (x1, y1) = curve.line
    assert (y1 - y0) / (x1 - x0) == 1.0

    page = page_of_findings(measured(project, FIXED), "findings.json")
    (arm,) = page.arms
    assert (arm.tone, arm.culprit, arm.charts[0].curves[0].line) == ("good", "", None)
    assert arm.verdicts[0].startswith("fd ok; would have caught ")
    assert page.summary == ("1 green",)


OWN_PROBE = """
    from pytest_leakcheck import Probe

    CONNECTIONS = []

    def pytest_leakcheck_probes(config):
        return [Probe("connection", read=lambda: len(CONNECTIONS))]
"""
USES_PROBE = """
    import pytest
    from conftest import CONNECTIONS

    @pytest.mark.connection_budget(0)
    def test_it():
        CONNECTIONS.append("open")
        {close}
"""


def test_a_counter_that_the_project_has_added_is_drawn_where_the_project_is_unknown(project: Project) -> None:
    ini = project.folder / "pytest.ini"
    ini.write_text(ini.read_text() + "pythonpath = .\n")
    project.write("conftest.py", OWN_PROBE)
    for close, tone in (("pass", "bad"), ("CONNECTIONS.pop()", "good")):
        project.write("test_it.py", USES_PROBE.format(close=close))
        project.run()
        out = project.folder / tone
        done = report(project.folder / "findings.json", "--out", out, "--no-open")
        assert (done.returncode, done.stderr) == (0, "")
        shown = (out / "findings.html").read_text(encoding="utf-8")
        assert "connection: connections" in shown
        assert ("sustained over 17 iterations" in shown) == (tone == "bad")


def test_over_sizes_the_peaks_are_drawn(project: Project) -> None:
    (arm,) = page_of_findings(measured(project, SIZES), "findings.json").arms
    (chart,) = arm.charts
    assert arm.tone == "bad"
    assert chart.axis == "size"
    assert chart.curves[0].points == ((8.0, 8.0), (16.0, 16.0), (32.0, 32.0))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "not a report of findings"),
        ({"findings": 3}, "not a report of findings"),
        ({"findings": [], "schema": 99}, "schema 99 is not 3"),
        (
            {"findings": [{"test": "a"}], "schema": 3, "resources": {}},
            r"^damaged report: findings\[0\]\.verdicts: expected list, got nothing\. Write a new one: pytest ",
        ),
        (
            {"findings": [3], "schema": 3, "resources": {}},
            r"^damaged report: findings\[0\]: expected object, got 3\. Write a new one: pytest ",
        ),
    ],
)
def test_what_is_no_report_says_so(data: object, said: str) -> None:
    with pytest.raises(ReportError, match=said):
        page_of_findings(json.dumps(data), "x")


def test_what_is_damaged_is_named_by_its_path(project: Project) -> None:
    text = measured(project, LEAKY)
    assert page_of_findings(text, "x").arms
    for path, seen in (
        ("culprit.where.site.line: expected int", "x"),
        ("verdicts.0.resource: expected one of fd, .* or gauge:NAME", "connection"),
    ):
        damaged = json.loads(text)
        at = damaged["findings"][0]
        *folders, name = path.partition(":")[0].split(".")
        for folder in folders:
            at = at[int(folder) if folder.isdigit() else folder]
        at[name] = seen
        said = path.replace(".0.", r"\[0\].")
        with pytest.raises(
            ReportError, match=rf"^damaged report: findings\[0\]\.{said}, got '{seen}'\. Write a new one: "
        ):
            page_of_findings(json.dumps(damaged), "x")


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_the_command(project: Project) -> None:
    measured(project, LEAKY)
    out = project.folder / "out"
    done = report(project.folder / "findings.json", "--out", out, "--no-open")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(one.name for one in out.iterdir()) == ["findings.html"]
    assert "sustained over 17 iterations" in (out / "findings.html").read_text(encoding="utf-8")


def test_the_command_without_a_file_that_it_knows(tmp_path: Path) -> None:
    done = report(tmp_path / "none.json")
    assert done.returncode == 2
    assert "No such file" in done.stderr
    (tmp_path / "other.json").write_text("{]", encoding="utf-8")
    assert report(tmp_path / "other.json").returncode == 2


def test_without_the_extra_it_says_what_installs_it(tmp_path: Path) -> None:
    write(tmp_path / "x.json", [])
    script = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'jinja2' else find(name, *more)\n"
        "from pytest_leakcheck.cli import main; sys.exit(main(['report', 'x.json']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3
    assert "needs jinja2: pip install 'pytest-leakcheck[report]'" in done.stderr
