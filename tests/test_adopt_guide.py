"""docs/adopt.md, step by step in an empty folder: each file is written, each command run, and each line shown is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from projects import ROOT

pytestmark = pytest.mark.laboratory

GUIDE = (ROOT / "docs" / "adopt.md").read_text(encoding="utf-8")
# A file with its name in the line above, or commands with what they print.
BLOCK = re.compile(r"(?ms)^(?:`([\w./]+)`:\n\n)?```text\n(.*?)^```$")
COMMAND = re.compile(r"(?m)^\$ (.*)\n((?:(?!\$ ).*\n)*)")


def steady(text: str) -> list[str]:
    """The lines without what differs between runs: times, numbers of iterations, finding ids and the layout."""
    text = re.sub(r"\b[0-9a-f]{6}\b", "ID", re.sub(r"[\d.]+ (s\b|iterations)", r"N \1", text))
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def run(command: str, folder: Path) -> list[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER", "GITHUB_ACTIONS")}
    # Other tests write to the usual folder for temporary files.
    (folder / "tmp").mkdir(exist_ok=True)
    clean |= {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8", "TMPDIR": str(folder / "tmp")}
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=300)
    return steady(done.stdout)


def test_the_guide_shows_what_happens(tmp_path: Path) -> None:
    commands = 0
    for name, text in BLOCK.findall(GUIDE):
        if name:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            continue
        for command, shown in COMMAND.findall(text):
            printed = iter(run(command, tmp_path))
            missing = [line for line in steady(shown) if not any(line in one for one in printed)]
            assert missing == [], (command, missing)
            commands += 1
    assert commands == 6
