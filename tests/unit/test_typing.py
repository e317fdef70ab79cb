"""Type checkers find a misspelt resource; what they accept is what the plugin accepts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from pytest_leakcheck.config.budget import Levels
from pytest_leakcheck.model.resource_table import ROWS
from pytest_leakcheck.model.resources import RESOURCES

SNIPPET = """\
from pytest_leakcheck import Leakcheck, measure


def test_right(leakcheck: Leakcheck) -> None:
    for _ in leakcheck.steps(20, fd=0, heap="1 MiB", rss=None):
        pass
    own = {"connection": 0}
    with leakcheck.budget(thread=1, **own):
        pass
    for _ in leakcheck.steps(**own):
        pass
    measure(list, fd=0, **own).check()


def test_wrong(leakcheck: Leakcheck) -> None:
    leakcheck.steps(fds=0)  # call-arg
    leakcheck.budget(fd="many")  # arg-type
    leakcheck.budget(connection=0)  # call-arg
    measure(list, heep="1 MiB")  # call-arg
    measure(list, object=1.5)  # arg-type
"""


def test_mypy_accepts_what_is_valid_and_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "snippet.py").write_text(SNIPPET, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--config-file=", "snippet.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    found = re.findall(r"(?m)^snippet.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout)
    expected = [
        (str(number), line.rpartition("# ")[2]) for number, line in enumerate(SNIPPET.splitlines(), 1) if "# " in line
    ]
    assert len(expected) == 5
    assert found == expected, done.stdout + done.stderr
    assert "Found 5 errors in 1 file" in done.stdout
    assert 'did you mean "fd"?' in done.stdout


def test_the_keywords_are_those_of_the_table() -> None:
    hints = get_type_hints(Levels)
    assert list(hints) == [row["name"] for row in ROWS]
    # A size may be a text; a count may not.
    texts = [name for name, hint in hints.items() if str in get_args(hint)]
    assert texts == [name for name in hints if RESOURCES[name].unit == "bytes"]
