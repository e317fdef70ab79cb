"""The census of false alarms: its intervals, its file that can be gone on from, its table."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import ROOT

BENCH = ROOT / "ci" / "bench"


@pytest.fixture
def census(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(BENCH)
    parts = runpy.run_path(str(BENCH / "census.py"))
    for name in set(sys.modules) - before:
        if str(BENCH) in (getattr(sys.modules[name], "__file__", None) or ""):
            monkeypatch.delitem(sys.modules, name)
    return parts


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        # For none and for all there is a closed form: 1 - 0.025 ** (1 / n), and its mirror image.
        (0, 1, 0.0, 0.975),
        (0, 100, 0.0, 1 - 0.025**0.01),
        (0, 3000, 0.0, 1 - 0.025 ** (1 / 3000)),
        (10, 10, 0.025**0.1, 1.0),
        # For one of two, P(at least 1) = 1 - (1 - p) ** 2 = 0.025, and its mirror image.
        (1, 2, 1 - 0.975**0.5, 0.975**0.5),
        # Clopper and Pearson's own kind of table, three digits.
        (1, 10, 0.0025, 0.4450),
        (5, 50, 0.0333, 0.2181),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_exact_interval(census: dict[str, Any], hits: int, trials: int, low: float, high: float) -> None:
    assert census["interval"](hits, trials) == pytest.approx((low, high), abs=5e-5)


def test_more_hits_than_trials(census: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="3 of 2"):
        census["interval"](3, 2)


def row(census: dict[str, Any], seed: int, verdict: str = "ok", workload: str = "json_round_trip") -> Any:
    outcome = {"red": "leak", "error": ""}.get(verdict, verdict)
    remarks = [{"resource": "heap", "colour": "red", "reason": "+64 B/iter"}] if verdict == "red" else []
    if verdict == "error":
        remarks = [{"reason": "exit 2", "output": ""}]
    resources = {"fd": "ok", "heap": outcome} if outcome else {}
    return census["Row"](workload, seed, verdict, resources, 58, 1.5, remarks)


def test_a_file_is_gone_on_from(census: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = census["Rows"](path, "abc")
    rows.add(row(census, 0))
    rows.add(row(census, 1, "red"))
    # As it stands when the machine went off in the middle of a line.
    path.write_bytes(path.read_bytes() + b'{"workload": "json_r')
    again = census["Rows"](path, "abc")
    assert again.all == rows.all
    again.add(row(census, 2))
    assert [one.seed for one in census["Rows"](path, "").all] == [0, 1, 2]
    assert [json.loads(line)["engine"] for line in path.read_text().splitlines() if line.endswith("}")] == ["abc"] * 3
    with pytest.raises(SystemExit, match="name another"):
        census["Rows"](path, "def")


def test_what_is_lacking(census: dict[str, Any]) -> None:
    chosen = census["choose"](["json_round_trip", "xml_tree"])
    there = [row(census, 0), row(census, 1), row(census, 0, workload="xml_tree")]
    assert list(census["_list_missing"](chosen, there, 6)) == [("xml_tree", 1), ("json_round_trip", 2), ("xml_tree", 2)]
    assert list(census["_list_missing"]([], there, 6)) == []
    with pytest.raises(SystemExit, match="no workload 'jso'"):
        census["choose"](["jso"])


def test_the_table(census: dict[str, Any]) -> None:
    rows = [row(census, 0), row(census, 1, "red"), row(census, 2, "inconclusive"), row(census, 3, "error")]
    lines = census["table"](rows, "abc").splitlines()
    shown = "4 | 1 | 1 | 0 | 1 | 1 | 33.33% (0.84% to 90.57%) | 58 | 1.5 |"
    assert f"| json_round_trip | {shown}" in lines
    assert f"| **all** | {shown}" in lines
    assert "| fd | 3 | 3 |  | 0 | 0.00% (0.00% to 70.76%) |" in lines
    assert "| heap | 3 | 1 | 1 inconclusive, 1 leak | 1 | 33.33% (0.84% to 90.57%) |" in lines
