"""The shell command itself: what it says without a subcommand, and its version."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak, to_text
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
        (
            ["--", "python", "train.py"],
            "no command before python train.py: repro, watch, report, compare, explain or baseline",
        ),
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


@pytest.mark.parametrize(("line", "expected"), [("re", "repro report"), ("explain --", "--help")])
def test_a_shell_completes_subcommands_and_options(line: str, expected: str, tmp_path: Path) -> None:
    typed, shown = f"pytest-leakcheck {line}", tmp_path / "completions"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": typed, "COMP_POINT": str(len(typed)), "_ARGCOMPLETE_IFS": " "}
    subprocess.run(
        [sys.executable, "-m", "pytest_leakcheck"],
        env=os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(shown)},
        check=True,
    )
    assert {one.strip() for one in shown.read_text().split()} >= set(expected.split())


@pytest.fixture
def known(tmp_path: Path) -> str:
    """A file of more than a pipe takes."""
    path = tmp_path / "known.json"
    leaks = (KnownLeak(f"{number:06}", "fd", "leak", 1.0, "x" * 100, "", ("t.py::a",), "") for number in range(1000))
    path.write_text(to_text(Baseline(tuple(leaks))))
    return str(path)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize(
    ("out", "status", "told"),
    [
        (closed_pipe, 141, ""),
        (lambda: os.open("/dev/full", os.O_WRONLY), 3, "pytest-leakcheck: No space left on device\n"),
    ],
    ids=["closed pipe", "full disk"],
)
@pytest.mark.parametrize("arguments", [["baseline", "list"], ["--version"]])
def test_output_that_cannot_be_written_is_a_status(
    known: str, arguments: list[str], out: Callable[[], int], status: int, told: str
) -> None:
    command = [sys.executable, "-m", "pytest_leakcheck", *arguments, *([known] if len(arguments) > 1 else [])]
    stdout = out()
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    os.close(stdout)
    assert (done.returncode, done.stderr) == (status, told)


def test_a_closed_output_is_none(known: str) -> None:
    script = 'exec "$0" -m pytest_leakcheck baseline list "$1" >&-'
    done = subprocess.run(["sh", "-c", script, sys.executable, known], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["report", "--no-open"], ["compare", "/dev/null"], ["baseline", "list"]])
@pytest.mark.parametrize("kind", ["/dev/zero", "pipe", "."])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], kind: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / kind
    assert main([*command, str(path)]) == 2
    assert f"{path}: a " in capsys.readouterr().err
