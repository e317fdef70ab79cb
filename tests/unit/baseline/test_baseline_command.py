from __future__ import annotations

from pathlib import Path

import pytest

from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak, read, to_text
from pytest_leakcheck.cli import main

FILES = KnownLeak(
    "e62d98-fd-library-FILES", "fd", "leak", 2.0, "library.FILES", "", ("t.py::a", "t.py::b"), "2026-11-24"
)
ROWS = KnownLeak(
    "0f1a2b-rows", "rows", "leak", 1.0, "", "", ("t.py::a",), "2026-11-24", reason="issue 7", package="click"
)


def write(path: Path, *known: KnownLeak) -> str:
    path.write_text(to_text(Baseline(known)), encoding="utf-8")
    return str(path)


def test_each_known_leak_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "list", write(tmp_path / "known.json", ROWS, FILES)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0f1a2b  rows +1.0/iter  cause unknown  1 test  click  issue 7",
        "e62d98  fd +2.0/iter  library.FILES  2 tests",
    ]


def test_files_are_joined_into_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path / "a.json", FILES), write(tmp_path / "b.json", ROWS)]
    assert main(["baseline", "merge", *files]) == 0
    joined = tmp_path / "all.json"
    joined.write_text(capsys.readouterr().out, encoding="utf-8")
    assert read(joined) == Baseline((ROWS, FILES))


def test_a_file_that_is_no_baseline_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "known.json").write_text("[]", encoding="utf-8")
    assert main(["baseline", "list", str(tmp_path / "known.json")]) == 2
    assert "known.json: value: expected object" in capsys.readouterr().err.replace("\n", " ")
    assert main(["baseline", "list", str(tmp_path / "nowhere.json")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
