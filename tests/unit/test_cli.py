"""The shell command itself: what it says without a subcommand, and its version."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from pytest_leakcheck.cli import main


def test_without_arguments_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: pytest-leakcheck")
    assert "pytest --leakcheck" in text
    assert all(name in text for name in ("repro", "watch", "report"))


def test_it_runs_as_a_module_and_knows_its_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_leakcheck", "--version"], capture_output=True, check=True, text=True
    )
    assert done.stdout == f"pytest-leakcheck {version('pytest-leakcheck')}\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nope"], "invalid choice: 'nope'"),
        (["--", "python", "train.py"], "no command before python train.py: repro, watch, report, compare or baseline"),
        (["report", "a.json", "--wrong"], "unrecognized arguments: --wrong"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_does_not_exist_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "nope.json"]) == 2
    assert capsys.readouterr().err == "pytest-leakcheck report: nope.json: No such file or directory\n"
