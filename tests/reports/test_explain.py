"""`pytest-leakcheck explain`: one finding of a report, with its advice and the next command; and where the guide is linked."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from projects import ROOT, Project
from pytest_leakcheck.cli import main
from pytest_leakcheck.model.culprit import Culprit, Owner
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.json_file import FirstLine, LastLine, Session, to_line

OWNER = Owner("shop.OPENED", "module shop", (), "int", 1.0)

SUITE = """
    import os
    import pytest

    FILES, ROWS = [], []

    @pytest.mark.parametrize("number", [1, 2])
    def test_opens(number): FILES.append(os.open(os.devnull, os.O_RDONLY))
    def test_adds(): ROWS.append([])
    def test_clean(): pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = Project(tmp_path_factory.mktemp("explain"))
    ran = project.run_test(SUITE, "--leakcheck-scope=all", "--leakcheck-html=page.html")
    assert ran.last_line == "3 failed, 4 passed"
    (project.folder / "terminal.txt").write_text(ran.text, encoding="utf-8")
    return project.folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    return folder / "findings.json"


def lines_of(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def finding(report: Path) -> str:
    return str(next(cause["finding"] for cause in lines_of(report)[-1]["causes"] if cause["resource"] == "fd"))


def test_a_finding_is_printed_as_in_the_terminal_with_what_to_do(
    folder: Path, finding: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["explain", finding[:6], "findings.json"]) == 0
    printed = capsys.readouterr().out
    block, _, more = printed.partition("  tests  ")
    assert block.startswith("fd +1.0/iter — test_it.py:7 os.open() (17 iterations)\n")
    assert block in (folder / "terminal.txt").read_text(encoding="utf-8")
    assert '  next         pytest --leakcheck-scope=all "test_it.py::test_opens[1]"\n' in block
    assert more.splitlines() == [
        "      test_it.py::test_opens[1], test_it.py::test_opens[2]",
        "  advice       release what test_it.py:7 makes or remove it from test_it.FILES",
        f"  guide        {GUIDE}",
    ]


@pytest.mark.parametrize(
    ("verdict", "culprit", "advice"),
    [
        (Verdict("fd", "leak"), Culprit("fd"), "find the line that makes it"),
        (Verdict("fd", "leak"), Culprit("fd", owner=OWNER), "remove it from shop.OPENED"),
        (Verdict("fd", "leak"), Culprit("fd", owner=OWNER, hint="a known shape"), None),
        (Verdict("fd", "over_budget", advice="raise it"), None, "raise it"),
        (Verdict("fd", "over_budget"), None, "lower what is held at once, or raise"),
        (Verdict("fd", "unclosed"), None, "close it where its use ends"),
        (Verdict("fd", "inconclusive"), None, None),
    ],
)
def test_the_advice_follows_from_the_kind_and_the_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verdict: Verdict, culprit: Culprit | None, advice: str | None
) -> None:
    red = replace(verdict, colour="red")
    found = Finding("t.py::a", (red,), {}, (), {}, Recording("t.py::a", ()), {}, culprit)
    path = tmp_path / "report.json"
    path.write_text(to_line(FirstLine({})) + to_line(found) + to_line(LastLine(Session(), ())), encoding="utf-8")
    assert main(["explain", found.fingerprint, str(path)]) == 0
    rows = [line.strip() for line in capsys.readouterr().out.splitlines()]
    given = [row.removeprefix("advice").strip() for row in rows if row.startswith("advice")]
    assert [text.startswith(advice or "") for text in given] == [True] * (advice is not None)


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        ("zz", "ID 'zz' (command line): no finding of {report} begins so, but {ids} do; give one of them"),
        ("", "ID '' (command line): 2 findings of {report} begin so: {findings}; give more of one"),
    ],
)
def test_an_identifier_that_fits_no_finding_or_several(
    report: Path, begin: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    red = [line for line in lines_of(report) if line.get("colour") == "red"]
    findings = list(dict.fromkeys(line["fingerprint"] for line in red))
    expected = said.format(report=report, ids=", ".join(one[:6] for one in findings), findings=", ".join(findings))
    assert main(["explain", begin, str(report)]) == 2
    assert capsys.readouterr().err == f"pytest-leakcheck: {expected}\n"


def test_a_report_without_a_finding(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.run_test("def test_clean(): pass\n", "--leakcheck-scope=all")
    report = project.folder / "findings.json"
    assert main(["explain", "0a1b2c", str(report)]) == 2
    why = "has no finding, because all judged tests are green; name another report"
    assert capsys.readouterr().err == f"pytest-leakcheck: ID '0a1b2c' (command line): {report} {why}\n"


def test_what_is_no_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    advice = "write a new report: pytest --leakcheck --leakcheck-json=FILE\n"
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "0a1b2c"]) == 2
    missing = f"leaks.json: No such file or directory; name a report, or {advice}"
    assert capsys.readouterr().err == f"pytest-leakcheck: {missing}"
    Path("leaks.json").write_text("{}")
    assert main(["explain", "0a1b2c"]) == 2
    said = capsys.readouterr().err
    assert (said.startswith("pytest-leakcheck: leaks.json: not a report: "), said.endswith(advice)) == (True, True)


def test_a_killed_session_explains_what_it_has(
    report: Path, finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = tmp_path / "killed.json"
    killed.write_text(report.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    assert main(["explain", finding, str(killed)]) == 0
    printed = capsys.readouterr()
    assert printed.err.startswith(f"pytest-leakcheck explain: {killed}: the run did not end ")
    assert '  next         pytest --leakcheck "test_it.py::test_opens[1]"\n' in printed.out


def test_each_report_with_a_leak_leads_to_the_guide(
    folder: Path, report: Path, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "terminal.txt").read_text(encoding="utf-8")
    assert text.count(f"\n  how to fix: {GUIDE}\n") == 1
    assert lines_of(report)[-1]["session"]["guide"] == GUIDE
    assert f'<a href="{GUIDE}">' in (folder / "page.html").read_text(encoding="utf-8")
    assert main([]) == 0
    assert f"To fix a leak: {GUIDE}\n" in capsys.readouterr().out
    assert GUIDE not in project.run_test("def test_clean(): pass\n", "--leakcheck-scope=all").text


def test_the_guide_is_a_page_of_the_documentation() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    page = GUIDE.removeprefix(urls["Documentation"])
    assert (ROOT / "docs" / f"{page.rstrip('/')}.md").is_file()
