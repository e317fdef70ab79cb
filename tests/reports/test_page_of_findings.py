"""What --leakcheck-json wrote, as a page: a leak red with its line and its cause, the fixed test green with its floor."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from projects import HEAD, Project
from pytest_leakcheck.report.html.findings_page import page_of_report
from pytest_leakcheck.report.json_file import Report, read

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


FAILING = """
    import json
    def parse():
        json.loads("1")
        json.loads("2")
    @pytest.mark.leakcheck(failures=["json.loads"])
    def test_it():
        try: parse()
        except ValueError: pass
"""


class Words(HTMLParser):
    """The text of a page, without its script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.feed(re.sub(r"(?s)<(script|style)>.*?</\1>", "", text))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(page: Path) -> str:
    return " ".join(Words(page.read_text(encoding="utf-8")).text)


def measured(project: Project, body: str) -> Report:
    project.run_test(HEAD + body)
    return read(project.folder / "findings.json")


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on a leak."""
    project = Project(tmp_path_factory.mktemp("leaky"))
    project.run_test(HEAD + LEAKY)
    return project.folder / "findings.json"


def test_green_tests_are_counted_without_their_failing_paths(project: Project) -> None:
    page = page_of_report(measured(project, FAILING), "findings.json")
    assert page.counts == (("1 green test", "good"),)
    assert [[entry.name for entry in section.entries] for section in page.sections] == [["test_it.py::test_it"]]


def test_a_leak_and_its_fix(leaky: Path, project: Project) -> None:
    page = page_of_report(read(leaky), "findings.json")
    (card,) = page.cards
    assert (card.title, card.tone, card.badge) == (
        "fd +1.0/iter — test_it.py:4 os.open() (17 iterations)",
        "bad",
        "leak",
    )
    assert re.fullmatch(
        r"descriptors \+1.0/iter since iteration 1 of 17 \(after 3 of warm-up\); this process reaches its limit of [\d,]+ descriptors .ulimit -n. after ≈ .*",
        card.lead,
    )
    made, holds, to_do, counted = card.parts
    assert to_do.command == 'pytest --leakcheck "test_it.py::test_it"'
    assert counted.rows[0] == ("leak", "+1.0/iter sustained over 17 iterations")
    assert "test_it.py:4 in leak()\n" in made.rows[0][1]
    assert [number for number, _text, marked in made.source if marked] == [4]
    assert [note for text, note in holds.path if "KEPT" in text] == ["grows by 1.0/iter"]
    (chart,) = card.charts
    (curve,) = chart.curves
    assert [y - curve.points[0][1] for _x, y in curve.points] == list(range(18))
    assert chart.limit is not None
    assert (chart.limit.y - curve.points[0][1]) / chart.limit.x == 1.0
    reached = f"after ≈ {chart.limit.x + 3:,.0f}"
    assert f"{reached} iterations" in card.lead
    assert chart.limit.text == f"limit {chart.limit.y:,} (ulimit -n), reached {reached}"

    page = page_of_report(measured(project, FIXED), "findings.json")
    assert (page.cards, page.counts) == ((), (("1 green test", "good"),))
    (section,) = page.sections
    (green,) = section.entries
    assert (section.folded, green.name, green.tone) == (True, "test_it.py::test_it", "good")
    assert green.text.startswith("fd 1 in ")
    assert section.intro == "The smallest leak that each would have caught:"


def test_the_page_is_written_in_the_run_and_holds_what_the_terminal_shows(project: Project) -> None:
    project.write("test_it.py", HEAD + LEAKY + "\n    def test_plain(): pass\n")
    secret = "--deselect=none?token=hunter2"
    outcome = project.run("--leakcheck-html=page.html", "--color=no", "--leakcheck-blame=test_it", secret)
    assert f"leakcheck: wrote {project.folder / 'page.html'}" in outcome.text
    text = shown(project.folder / "page.html")
    block = outcome.text[outcome.text.index("fd +1.0/iter") : outcome.text.index("= leakcheck =")]
    # A word by itself, since a terminal wraps lines, and shortens a path. Three words are marks or labels, for which the
    # page has a form.
    words = {part for word in block.split() for part in word.split("…") if part.strip("=")}
    assert {word for word in words if word not in text} == {"means", "<-", "next"}
    assert "2 tests: 1 leak" in text
    assert "1 not judged (1 without a mark)" in text
    assert "pytest -p no:cacheprovider --leakcheck-html=page.html --color=no --leakcheck-blame=test_it" in text
    assert "--deselect=…" in text
    assert "hunter2" not in text


def test_under_xdist_the_controller_writes_one_page(project: Project) -> None:
    project.write("test_it.py", HEAD + LEAKY + LEAKY.replace("test_it", "test_again"))
    outcome = project.run("--leakcheck-html=page.html", "-n", "2", "--dist=load")
    assert outcome.text.count("leakcheck: wrote ") == 2, outcome.text
    text = shown(project.folder / "page.html")
    assert "2 tests: 2 leak (1 cause)" in text
    assert "1 red cause" in text
    assert "test_it.py::test_again" in text


def test_a_page_without_lines_of_source(leaky: Path, project: Project) -> None:
    assert "KEPT.append(os.open(" in str(page_of_report(read(leaky), "x"))
    ini = project.folder / "pytest.ini"
    ini.write_text(ini.read_text() + "leakcheck_source = false\n")
    project.run_test(HEAD + LEAKY, "--leakcheck-html=page.html")
    page = shown(project.folder / "page.html")
    assert "test_it.py:4 in leak()" in page
    assert "KEPT.append(os.open(" not in page


LOADED = """
    import sys

    def pytest_sessionfinish():
        found = [name for name in sys.modules if name.startswith(("jinja2", "pytest_leakcheck.report.html"))]
        print("loaded:", found)
"""


@pytest.mark.parametrize("options", [(), ("--leakcheck-html=page.html",)])
def test_nothing_that_renders_is_loaded_while_tests_run(project: Project, options: tuple[str, ...]) -> None:
    project.write("conftest.py", LOADED.replace("pytest_sessionfinish", "pytest_runtest_logfinish"))
    assert "loaded: []" in project.run_test(HEAD + LEAKY, "-s", *options).text


def test_a_path_that_cannot_be_written_is_wrong_use(project: Project) -> None:
    outcome = project.run_test(HEAD + LEAKY, "--leakcheck-html=no/page.html")
    assert outcome.status == 4
    page = project.folder / "no" / "page.html"
    why = f"{page}: No such file or directory; name a file in a writable folder"
    assert f"--leakcheck-html=no/page.html (command line): {why}" in outcome.text


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
        project.run_test(USES_PROBE.format(close=close))
        out = project.folder / tone
        done = report(project.folder / "findings.json", "--out", out, "--no-open")
        assert (done.returncode, done.stderr) == (0, "")
        text = (out / "findings.html").read_text(encoding="utf-8")
        assert ("connection: connections" in text) == ("sustained over 17 iterations" in text) == (tone == "bad")
        assert ("<span>connection 1 in " in text) == (tone == "good")


def test_over_sizes_the_peaks_are_drawn(project: Project) -> None:
    (card,) = page_of_report(measured(project, SIZES), "findings.json").cards
    (chart,) = card.charts
    assert card.tone == "bad"
    assert chart.axis == "n"
    assert chart.curves[0].points == ((8.0, 8.0), (16.0, 16.0), (32.0, 32.0))


def report(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_leakcheck", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def test_the_command(leaky: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = report(leaky, "--out", out, "--no-open")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(one.name for one in out.iterdir()) == ["findings.html"]
    assert "sustained over 17 iterations" in (out / "findings.html").read_text(encoding="utf-8")


def test_the_command_without_a_file_that_it_knows(tmp_path: Path) -> None:
    done = report(tmp_path / "none.json")
    assert done.returncode == 2
    assert "No such file" in done.stderr
    (tmp_path / "other.json").write_text("{]", encoding="utf-8")
    assert report(tmp_path / "other.json").returncode == 2
