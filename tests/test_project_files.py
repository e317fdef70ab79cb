"""Workflows, hooks and templates: they can be parsed, and what they run is there."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from projects import ROOT

yaml: Any = pytest.importorskip("yaml", reason="comes with huggingface_hub, of the extra 'test'")

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_workflows_are_these() -> None:
    assert [path.stem for path in WORKFLOWS] == ["canary", "release", "site", "suites", "tests"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    # A path below the root, not a word of another path.
    scripts = re.findall(r"(?<!\S)(\./|python )(ci/[\w.]+)", "\n".join(step.get("run", "") for step in steps))
    assert scripts
    assert all(os.access(ROOT / script, os.X_OK if how == "./" else os.R_OK) for how, script in scripts)


def test_every_python_is_tested() -> None:
    jobs = read(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]
    assert jobs["core"]["strategy"]["matrix"]["python"] == PYTHONS
    promised = re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert jobs["suite"]["strategy"]["matrix"]["python"] == promised


def test_the_changelog_begins_with_the_version_that_is_released_next() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    headings = re.findall(r"(?m)^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    # The workflow of a release takes only a date.
    assert re.fullmatch(rf"{re.escape(version)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", headings[0])


def test_a_release_stores_no_token() -> None:
    release = read(ROOT / ".github" / "workflows" / "release.yml")
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["false-alarm", "missed-leak", "problem"])
def test_a_template_has_fields(name: str) -> None:
    template = read(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert all(field["id"] and field["attributes"]["label"] for field in template["body"])


def test_the_hooks_before_a_commit_are_those_of_the_check() -> None:
    local = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    check = (ROOT / "ci" / "check").read_text(encoding="utf-8")
    assert [hook["id"] for hook in local] == ["ruff-format", "ruff-check", "codespell", "words", "mypy"]
    assert all(hook["entry"].split()[0] in check for hook in local)
