"""`./ci/test`: what fails beside others runs again, alone, and that run decides."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from projects import ROOT

BESIDE_OTHERS = "import os\ndef test_{name}(): assert 'PYTEST_XDIST_WORKER' not in os.environ\n"
BROKEN = "def test_{name}(): assert False\n"
HEADING = "--- run again, alone, because they failed beside others:\n"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The script over a suite of its own, in an environment that is there already."""
    (tmp_path / "ci").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    shutil.copy(ROOT / "ci" / "test", tmp_path / "ci" / "test")
    environment = (ROOT / "ci" / "environment.sh").read_text(encoding="utf-8")
    (tmp_path / "ci" / "environment.sh").write_text(f"{environment}\ninstall_for_tests() {{ :; }}\n", encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers = laboratory\n", encoding="utf-8"
    )
    write(tmp_path, "unit/test_first", "def test_passes(): pass\n")
    return tmp_path


def write(folder: Path, name: str, text: str) -> None:
    path = folder / "tests" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def run(folder: Path) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(["bash", "ci/test"], cwd=folder, env=clean, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_test_that_fails_only_beside_others_is_named_and_does_not_fail_the_run(gate: Path) -> None:
    write(gate, "unit/test_busy", BESIDE_OTHERS.format(name="unit"))
    write(gate, "plugin/test_busy", BESIDE_OTHERS.format(name="plugin"))
    write(gate, "plugin/test_measures", "import pytest\n@pytest.mark.laboratory\ndef test_rate(): assert False\n")
    status, said = run(gate)
    again = said.partition(HEADING)[2]
    assert again.startswith("tests/plugin/test_busy.py::test_plugin\ntests/unit/test_busy.py::test_unit\n"), said
    assert (status, "2 passed" in again) == (0, True)


def test_a_test_that_fails_alone_as_well_fails_the_run(gate: Path) -> None:
    write(gate, "plugin/test_broken", BROKEN.format(name="it"))
    status, said = run(gate)
    assert (status, "1 failed" in said.partition(HEADING)[2]) == (1, True), said


@pytest.mark.laboratory
@pytest.mark.parametrize("text", ["".join(BESIDE_OTHERS.format(name=n) for n in range(6)), "syntax error\n"])
def test_many_failures_and_a_file_that_cannot_be_read_fail_at_once(gate: Path, text: str) -> None:
    write(gate, "plugin/test_wrong", text)
    status, said = run(gate)
    assert status != 0, said
    assert "passed" not in said.partition(HEADING)[2]
