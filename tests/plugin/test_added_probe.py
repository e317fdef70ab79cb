"""A probe that is added as CONTRIBUTING.md says, by a module and a row: everything else follows from these two."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import ROOT, Project

MODULE = '''
"""Count the doors of a house that are open."""

import sys

from pytest_leakcheck.probes.base import NotInUse, Stateless


class Doors(Stateless):
    """``door``: open doors. Resolution: one. Noise: none."""

    resource = "door"

    def open(self) -> None:
        if "house" not in sys.modules:
            raise NotInUse("no house is loaded")

    def read(self) -> int:
        return len(sys.modules["house"].OPEN)
'''
ROW = """    _row(_HANDLE, "door", "open doors", "", "doors:Doors", made_of="anything"),
"""
HOUSE = """
    OPEN = []

    class Door:
        pass
"""
TEST = """
    import house
    import pytest

    @pytest.mark.door_budget(0)
    def test_rooms():
        house.OPEN.append(house.Door())
        {close}

    @pytest.mark.leakcheck
    def test_anything():
        house.OPEN.append(house.Door())
        {close}
"""


@pytest.fixture
def changed_package(tmp_path: Path) -> Path:
    """A copy of the package with one module and one row more. Returns the folder to import it from."""
    folder = tmp_path / "changed"
    package = folder / "pytest_leakcheck"
    shutil.copytree(ROOT / "pytest_leakcheck", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "probes" / "doors.py").write_text(MODULE.lstrip("\n"), encoding="utf-8")
    table = package / "model" / "resource_table.py"
    text = table.read_text(encoding="utf-8")
    end = text.rindex(")")
    table.write_text(text[:end] + ROW + text[end:], encoding="utf-8")
    return folder


def test_a_module_and_a_row_are_all_it_takes(project: Project, changed_package: Path, tmp_path: Path) -> None:
    ini = project.folder / "pytest.ini"
    ini.write_text(ini.read_text() + "strict = true\npythonpath = .\n")
    project.write("house.py", HOUSE)
    project.write("test_rooms.py", TEST.format(close="pass"))
    environment: dict[str, Any] = {"PYTHONPATH": str(changed_package)}

    # The marker, without the flag.
    assert project.run(leakcheck=False, **environment).last_line == "2 passed"
    assert (
        "bound the open doors that this test retains" in project.run("--markers", leakcheck=False, **environment).text
    )

    # The verdict and the owner, in the report and in JSON.
    leaky = project.run(**environment)
    assert "LeakError: door +1.0/iter" in leaky.text
    found = {one["test"].rpartition("::")[2]: one for one in leaky.findings if one["resource"] == "door"}
    assert [(name, one["verdict"], one["slope"]) for name, one in found.items()] == [
        ("test_rooms", "leak", 1.0),
        ("test_anything", "leak", 1.0),
    ]
    assert found["test_rooms"]["owner"]["name"] == "house.OPEN"

    # The page.
    out = tmp_path / "page"
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "report", str(project.folder / "findings.json")]
    done = subprocess.run(
        [*command, "--out", str(out), "--no-open"],
        cwd=project.folder,
        env={"PYTHONPATH": str(changed_package)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert "door: open doors" in (out / "findings.html").read_text(encoding="utf-8")

    # Fixed, it is silent, and the floor says what would have been caught.
    project.write("test_rooms.py", TEST.format(close="house.OPEN.pop()"))
    fixed = project.run("--leakcheck-summary=all", **environment)
    assert fixed.last_line == "2 passed"
    floor = fixed.finding("test_rooms", "door")["floor"]
    assert 0 < floor < 1
    assert project.lines()[0]["resources"] == {}
