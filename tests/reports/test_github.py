"""A job of GitHub Actions: one annotation per cause at its line, and a table in the summary of the job."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from projects import Project
from pytest_leakcheck.model.culprit import Site
from pytest_leakcheck.model.finding import Cause
from pytest_leakcheck.report.summary import annotate, summary_table
from variants import variants

SHOP = """
    import os
    FILES = []
    def open_file(): FILES.append(os.open(__file__, os.O_RDONLY))
"""
SUITE = """
    import os
    import shop

    KEPT = []

    def test_a(): shop.open_file()
    def test_b(): shop.open_file()
    def test_own(): KEPT.append(os.open(__file__, os.O_RDONLY))
    def test_clean(): pass
"""


def many(count: int) -> list[Cause]:
    site = Site("/work/src/shop.py", 7, "open_file", "open()")
    return [
        Cause(
            f"{number:06x}-fd",
            "fd",
            "leak",
            "red",
            slowest=1.0,
            fastest=2.0,
            site=site,
            tests=(f"t.py::test_{number}",),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("arguments", variants([()], [("-n", "2")]))
def test_each_cause_has_an_annotation_and_a_row(project: Project, arguments: tuple[str, ...]) -> None:
    project.write("src/shop.py", SHOP)
    project.write("tests/test_it.py", SUITE)
    summary = project.folder / "summary.md"
    summary.write_text("earlier\n")
    environment: dict[str, Any] = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(summary),
        "GITHUB_WORKSPACE": str(project.folder),
    }
    environment["PYTHONPATH"] = str(project.folder / "src")
    ran = project.run("--leakcheck-scope=all", *arguments, **environment)
    found = sorted(re.findall(r"(?m)^::(\w+) file=([^,]+),line=(\d+),title=(\w+) [0-9a-f]{6}::(.*)$", ran.text))
    assert [row[:4] for row in found] == [
        ("error", "src/shop.py", "3", "leak"),
        ("error", "tests/test_it.py", "8", "leak"),
    ], ran.text
    assert found[0][4].startswith("fd +1.0/iter; in open_file, shop.py:3; held by shop.FILES; tests/test_it.py::test_")
    text = summary.read_text(encoding="utf-8")
    assert html.unescape(text).startswith(
        "earlier\n### leakcheck\n\n4 tests: 1 ok · 3 leak (2 causes) · repeating took "
    )
    lines = [re.sub("</?code>", "", html.unescape(line)) for line in text.splitlines() if line.startswith("| leak")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert sorted(row[3:5] for row in rows) == [["src/shop.py:3", "shop.FILES"], ["tests/test_it.py:8", "test_it.KEPT"]]
    project.write("src/shop.py", SHOP.replace("FILES.append", "os.close"))
    project.write("tests/test_it.py", SUITE.replace("KEPT.append", "os.close"))
    fixed = project.run("--leakcheck-scope=all", *arguments, **environment)
    assert "::error" not in fixed.text
    assert "4 tests: 4 ok" in html.unescape(summary.read_text(encoding="utf-8"))


def test_elsewhere_and_without_a_summary_nothing_is_added(project: Project) -> None:
    project.write("src/shop.py", SHOP)
    project.write("tests/test_it.py", SUITE)
    own = ("--leakcheck-scope=all", "-k", "own")
    ran = project.run(*own, PYTHONPATH=str(project.folder / "src"), GITHUB_ACTIONS="")
    assert "::error" not in ran.text
    gone = str(project.folder / "no" / "folder" / "summary.md")
    ran = project.run(*own, PYTHONPATH=str(project.folder / "src"), GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=gone)
    assert f"could not write GITHUB_STEP_SUMMARY={gone}: No such file or directory" in ran.text
    assert (ran.text.count("::error"), ran.status) == (1, 1)


def test_ten_annotations_at_most_and_text_is_escaped() -> None:
    lines = list(annotate(many(12), Path("/work")))
    assert len(lines) == 11
    assert lines[-1] == "::notice title=leakcheck::2 more in the summary of the job"
    assert lines[0] == (
        "::error file=src/shop.py,line=7,title=leak 000000::fd +1.0 to +2.0/iter; in open_file, shop.py:7; t.py::test_0"
    )
    strange = Cause("0a1b2c-fd", "fd", "leak", "red", tests=("a,b/t:1.py::test[50%\n]",))
    (line,) = annotate([strange], Path("/work"))
    assert line == "::error file=a%2Cb/t%3A1.py,title=leak 0a1b2c::fd +0.0/iter; a,b/t:1.py::test[50%25%0A]"


def test_a_line_of_an_installed_package_is_not_annotated() -> None:
    site = Site("/work/.venv/lib/python3/site-packages/vendor.py", 7, "acquire")
    (line,) = annotate([Cause("0a1b2c-fd", "fd", "leak", "red", site=site, tests=("t.py::test",))], Path("/work"))
    assert line.startswith("::error file=t.py,title=leak 0a1b2c::")
    assert "in acquire, vendor.py:7" in line


def test_a_summary_stays_below_the_limit_of_github() -> None:
    text = summary_table("20,000 tests", many(20_000), Path("/work"))
    assert len(text.encode()) < 1024 * 1024
    left_out = re.search(r"(?m)^([\d,]+) more causes are left out\.$", text)
    assert left_out is not None
    assert text.count("\n| leak |") + int(left_out[1].replace(",", "")) == 20_000
