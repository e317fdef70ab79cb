"""A team adopts the plugin: a suite without marks and with leaks is judged whole, its leaks recorded, and then guarded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from planted import CAUSES, VENDOR, leaky_tests
from projects import Outcome, Project

pytestmark = pytest.mark.laboratory

ALL: Final = ("--leakcheck-scope=all", "--leakcheck-min-time=0", "--tb=no", "-p", "hypothesispytest")
UPDATE: Final = (*ALL, "--leakcheck-update-baseline")


class Suite:
    """The suite in a folder of its own, with a package that is installed beside it."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.project.write("pytest.ini", "[pytest]\naddopts = -p no:anyio -p no:asyncio\n")
        self.project.copy("program_of_the_shop.py", "shop.py")
        self.project.write("venv/lib/python3/site-packages/vendor.py", VENDOR)
        self.project.copy("program_of_clean_tests.py", "tests/test_clean.py")
        self.project.write("tests/test_leaky.py", leaky_tests())
        self.paths = f"{folder}{os.pathsep}{folder / 'venv/lib/python3/site-packages'}"
        self.file = folder / "leakcheck-baseline.json"

    def run(self, *arguments: str) -> Outcome:
        return self.project.run(*arguments, PYTHONPATH=self.paths, limit=1200)

    @property
    def known(self) -> list[dict[str, Any]]:
        known: list[dict[str, Any]] = json.loads(self.file.read_text(encoding="utf-8"))["known"]
        return known

    @property
    def owners(self) -> list[str]:
        return sorted(entry["owner"] for entry in self.known)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="module")
def updated(suite: Suite) -> Outcome:
    return suite.run(*UPDATE, "-n", "2")


@pytest.fixture
def recorded(suite: Suite, updated: Outcome) -> Iterator[Suite]:
    """The suite with its leaks recorded; what a test changes is put back."""
    assert updated.status == 1
    files = {path: path.read_bytes() for path in (suite.file, *suite.project.folder.glob("**/*.py"))}
    yield suite
    for path, content in files.items():
        path.write_bytes(content)


def red(ran: Outcome) -> list[str]:
    return sorted(one["test"].rpartition("::")[2] for one in ran.findings if one["colour"] == "red")


def counted(ran: Outcome) -> dict[str, int]:
    """pytest's own count, by outcome."""
    parts = (part.split() for part in ran.last_line.split(", "))
    return {outcome: int(count) for count, outcome in parts if not outcome.startswith("warning")}


def test_exactly_the_causes_are_written(recorded: Suite, updated: Outcome) -> None:
    assert recorded.owners == sorted(CAUSES)
    assert {entry["owner"]: len(entry["tests"]) for entry in recorded.known} == {
        owner: times for owner, (_call, times) in CAUSES.items()
    }
    assert {entry["owner"]: entry["package"] for entry in recorded.known if "package" in entry} == {
        name: "vendor" for name in CAUSES if name.startswith("vendor.")
    }
    assert red(updated) == []
    assert updated.last_line.startswith("3 failed, "), updated.text
    assert "leakcheck-baseline.json: 12 added\n" in updated.text
    assert "306 tests: " in updated.text


def test_the_same_again_is_the_same_file_and_plain_outcomes_stay(recorded: Suite) -> None:
    before = recorded.file.read_bytes()
    again = recorded.run(*UPDATE, "-n", "2")
    assert recorded.file.read_bytes() == before
    assert "60 known (12 causes)" in again.text
    plain = recorded.project.run("-q", "--tb=no", "-p", "hypothesispytest", leakcheck=False, PYTHONPATH=recorded.paths)
    # A known leak that the second pass finds changes nothing.
    assert counted(again) == counted(plain)


def test_beside_busy_processes_and_stopped_early_no_entry_is_lost(recorded: Suite) -> None:
    before = recorded.file.read_bytes()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"]) for _ in range(2)]
    try:
        ran = recorded.run(*ALL, "-n", "2", "-k", "leaky and _0")
        assert (red(ran), "fixed: " in ran.text) == ([], False), ran.text
        recorded.run(*UPDATE, "-x", "-k", "fails or vendor")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert recorded.file.read_bytes() == before
