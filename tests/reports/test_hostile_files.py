"""A damaged or hostile file costs one clear line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_leakcheck.cli import main

BEGAN = '{"at": 1.0, "watch": 1, "root": 1, "command": "x", "interval": 1.0}\n'
DEEP = "[" * 100_000 + "]" * 100_000
BIG = "9" * 400
SAMPLES = "".join(f'{{"at": {at}.0, "values": {{"TOTAL": 3}}}}\n' for at in range(2, 20))
NOT_FINITE = "expected a finite number of 64 bits, got "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f'{{"schema": 4, "resources": {DEEP}}}\n',
            "damaged in line 1: its values are nested too deeply; write a new report: pytest --leakcheck "
            "--leakcheck-json=FILE",
        ),
        (
            BEGAN.replace("1.0", "1e999") + SAMPLES.replace("TOTAL", "fd"),
            f"not a watch ledger: at: {NOT_FINITE}inf",
        ),
    ],
    ids=["deep", "infinite"],
)
def test_it_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert main(["report", "--no-open", str(path)]) == 2
    assert capsys.readouterr().err == f"pytest-leakcheck report: {path}: {said}\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f'{{"at": 2.0, "values": {DEEP}}}', "its values are nested too deeply"),
        (f'{{"at": 2.0, "values": {{"fd": {BIG}}}}}', f"values.fd: {NOT_FINITE}9999"),
        (f'{{"at": {BIG}, "values": {{"fd": 3}}}}', f"at: {NOT_FINITE}9999"),
        (f'{{"at": 2.0, "step": {BIG}, "values": {{"fd": 3}}}}', f"step: {NOT_FINITE}9999"),
        (f'{{"at": 2.0, "values": {{"fd": {BIG * 20}}}}}', "not JSON: Exceeds the limit"),
    ],
    ids=["deep", "total", "time", "step", "digits"],
)
def test_a_line_of_a_ledger_costs_itself(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_text(f"{BEGAN}{line}\n")
    assert main(["report", "--no-open", str(path)]) == 0
    assert f"line 2 cannot be read: {said}" in path.with_suffix(".html").read_text()


def test_a_ledger_with_known_totals_is_a_page(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for total in ("fd", "vram:0"):
        path.write_text(BEGAN + SAMPLES.replace("TOTAL", total))
        assert main(["report", "--no-open", str(path)]) == 0


def test_an_unknown_counter_costs_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(BEGAN + SAMPLES.replace("TOTAL", "<script>"))
    assert main(["report", "--no-open", str(path)]) == 0
    assert "line 2 cannot be read: unknown counter" in path.with_suffix(".html").read_text()
