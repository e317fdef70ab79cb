"""The census of false alarms: its intervals, its file that can be gone on from, its table."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from census import Row, create_row, interval, list_missing, read_rows, table


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        # For none and for all there is a closed form: 1 - 0.025 ** (1 / n), and its mirror image.
        (0, 100, 0.0, 1 - 0.025**0.01),
        (0, 3000, 0.0, 1 - 0.025 ** (1 / 3000)),
        (10, 10, 0.025**0.1, 1.0),
        # For one of two, P(at least 1) = 1 - (1 - p) ** 2 = 0.025, and its mirror image.
        (1, 2, 1 - 0.975**0.5, 0.975**0.5),
        # Clopper and Pearson's own kind of table, three digits.
        (5, 50, 0.0333, 0.2181),
        (0, 0, 0.0, 1.0),
    ],
)
def test_the_exact_interval(hits: int, trials: int, low: float, high: float) -> None:
    assert interval(hits, trials) == pytest.approx((low, high), abs=5e-5)


def row(seed: int, verdict: str = "ok", workload: str = "json_round_trip") -> Row:
    outcome = {"red": "leak", "error": ""}.get(verdict, verdict)
    return Row(workload, seed, verdict, {"fd": "ok", "heap": outcome} if outcome else {}, 58, 1.5, [])


def test_a_file_is_gone_on_from(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.jsonl", [row(0), row(1, "red")]
    # As it stands when the machine went off in the middle of a line.
    path.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rows) + '{"workload": "json_r')
    assert read_rows(path) == rows
    assert not read_rows(tmp_path / "none")


def test_what_is_lacking() -> None:
    chosen = ["json_round_trip", "xml_tree"]
    there = [row(0), row(1), row(0, workload="xml_tree")]
    assert list(list_missing(chosen, there, 6)) == [("xml_tree", 1), ("json_round_trip", 2), ("xml_tree", 2)]
    assert list(list_missing([], there, 6)) == []


def test_the_table() -> None:
    lines = table([row(0), row(1, "red"), row(2, "inconclusive"), row(3, "error")]).splitlines()
    shown = "4 | 1 | 1 | 0 | 1 | 1 | 33.33% (0.84% to 90.57%) | 58 | 1.5 |"
    assert f"| json_round_trip | {shown}" in lines
    assert f"| **all** | {shown}" in lines
    assert "| fd | 3 | 3 |  | 0 |" in lines
    assert "| heap | 3 | 1 | 1 inconclusive, 1 leak | 1 |" in lines


def test_a_row_says_what_remains() -> None:
    kept = {"reference": [{"what": "gained reference to class generator", "count": 441}]}
    leak, ok = (
        {"resource": name, "verdict": verdict, "reason": "+20.1/iter", "iterations": 22}
        for name, verdict in (("reference", "leak"), ("fd", "ok"))
    )
    made = create_row("numpy", 3, 9.5, {"colour": "red", "verdicts": [ok, leak], "held": kept})
    remark = "reference leak: +20.1/iter; 441 gained reference to class generator"
    assert made == Row("numpy", 3, "red", {"fd": "ok", "reference": "leak"}, 22, 9.5, [remark])
    assert create_row("numpy", 3, 9.5, {"colour": "green", "verdicts": [ok], "held": {}}).verdict == "ok"
