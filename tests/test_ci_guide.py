"""docs/ci.md: each file is valid, its pytest command runs in a suite with a leak, and what it keeps is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import ROOT

yaml: Any = pytest.importorskip("yaml", reason="comes with huggingface_hub, of the extra 'test'")

GUIDE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"(?ms)^`([\w./-]+)`:\n\n```text\n(.*?)^```$", GUIDE))
SUITE = """
import os
KEPT = []
def test_leak(): KEPT.append(os.open(os.devnull, os.O_RDONLY))
def test_clean(): pass
"""


def jobs() -> dict[str, tuple[list[str], list[str]]]:
    """The commands of each job, and the files that it keeps."""
    github = yaml.safe_load(FILES[".github/workflows/leaks.yml"])["jobs"]["leaks"]["steps"]
    gitlab = yaml.safe_load(FILES[".gitlab-ci.yml"])["leaks"]
    (upload,) = (step for step in github if "upload-artifact" in step.get("uses", ""))
    assert (upload["if"], gitlab["artifacts"]["when"]) == ("always()", "always")
    kept = [*gitlab["artifacts"]["paths"], gitlab["artifacts"]["reports"]["junit"]]
    return {
        "github": ([step["run"] for step in github if "run" in step], [upload["with"]["path"]]),
        "gitlab": (gitlab["script"], kept),
    }


@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_job_fails_for_a_leak_and_keeps_its_files(tmp_path: Path, name: str) -> None:
    commands, kept = jobs()[name]
    assert commands[0] == "pip install pytest pytest-leakcheck"
    (tmp_path / "test_it.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "tmp").mkdir()
    here = os.environ | {"CI": "true", "GITHUB_ACTIONS": "true" if name == "github" else "", "TMPDIR": "tmp"}
    words = commands[1].split()
    ran = subprocess.run(
        [sys.executable, "-m", *words], cwd=tmp_path, env=here, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "2 tests: 1 ok · 1 leak" in ran.stdout
    assert ("::error file=test_it.py,line=4,title=leak" in ran.stdout) == (name == "github")
    assert [one for one in kept if not list(tmp_path.glob(one))] == []
    assert {"leaks.json", "leaks.html"} < {one.name for one in tmp_path.iterdir()}
    (tmp_path / "test_it.py").write_text(SUITE.replace("KEPT.append", "os.close"), encoding="utf-8")
    fixed = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=here, check=False, timeout=300)
    assert fixed.returncode == 0


def test_the_options_are_those_of_the_plugin() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    named = set(re.findall(r"--leakcheck-[a-z-]+", GUIDE))
    assert len(named) >= 8
    assert {option for option in named if f"`{option}" not in reference} == set()
