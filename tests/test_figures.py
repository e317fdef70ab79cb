"""Each figure of the README and of docs/figures.md is that of the table that it is taken from."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import pytest

from projects import ROOT


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT / "ci"))
    try:
        return runpy.run_path(str(ROOT / "ci" / "figures.py"))
    finally:
        sys.path.remove(str(ROOT / "ci"))


def test_the_page_and_its_charts_are_up_to_date(figures: dict[str, Any]) -> None:
    assert figures["PAGE"].read_text(encoding="utf-8") == figures["page"](), "run: python ci/figures.py"
    drawn = {f"{one.name}.svg": figures["draw"](one) for one in figures["FIGURES"]}
    written = {path.name: path.read_text(encoding="utf-8") for path in figures["PICTURES"].iterdir()}
    assert written == drawn, "run: python ci/figures.py"


def test_a_chart_follows_its_table(figures: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    figure = next(one for one in figures["FIGURES"] if one.name == "peers-found")
    before = figure.bars()
    table = [row | {"found": "1/24"} for row in figures["table"]("benchmarks.md", "37 small external cases", "checker")]
    monkeypatch.setitem(figure.bars.__globals__, "table", lambda *_: table)
    assert {bar.value for bar in figure.bars()} == {1}
    assert {bar.value for bar in before} != {1}


def test_the_table_of_peers_in_the_readme_has_the_figures_of_the_benchmarks(figures: dict[str, Any]) -> None:
    table = figures["table"]
    best = {row["checker"]: row for row in table("benchmarks.md", "37 small external cases", "checker")}
    names = {
        "**pytest-leakcheck**": "pytest-leakcheck, now",
        "psleak": "psleak",
        "pytest-memray (`limit_leaks`)": "memray limit_leaks",
        "pytest-leaks, regrtest `-R`": "pytest-leaks -R",
        "distributed `-L all`": "distributed -L all",
    }
    shown = table("../README.md", "Why not another tool", "finds")
    assert [row[""] for row in shown] == list(names)
    heads = {"finds": "found", "false alarms": "false alarms", "names the line": "line", "names the owner": "owner"}
    for row in shown:
        for head, column in heads.items():
            # Of two rows of a checker, the later one has the best settings.
            counted = best[names[row[""]]][column].partition("/")[0]
            assert row[head].strip("*").partition(" ")[0] == counted, (row[""], head)
