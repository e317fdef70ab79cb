"""A counter that is added: by a project's hook, or as a module and a row of the package; everything else follows from these."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from projects import ROOT, Project
from variants import variants

CONFTEST = """
    from pytest_leakcheck import Probe

    CONNECTIONS = []

    def pytest_leakcheck_probes(config):
        return [Probe("connection", read=lambda: len(CONNECTIONS)), Probe("pooled", read=lambda: 64, unit="bytes")]
"""
TESTS = """
    import pytest
    from conftest import CONNECTIONS

    @pytest.mark.connection_budget(0)
    def test_query():
        CONNECTIONS.append("open")
        {close}

    @pytest.mark.leakcheck
    def test_anything():
        CONNECTIONS.append("open")
        {close}
"""
ONE = "import pytest\n@pytest.mark.leakcheck\ndef test_it(): pass\n"


@pytest.fixture
def connected(project: Project) -> Project:
    ini = project.folder / "pytest.ini"
    ini.write_text(ini.read_text() + "strict = true\npythonpath = .\n")
    project.write("conftest.py", CONFTEST)
    return project


@pytest.mark.parametrize("workers", variants([()], [("-n2",)]), ids=["alone", "xdist"])
def test_a_leak_of_it_is_red_and_its_repair_is_silent(connected: Project, workers: tuple[str, ...]) -> None:
    connected.write("test_a.py", TESTS.format(close="pass"))
    leaky = connected.run(*workers)
    assert {one["test"]: one["verdict"] for one in leaky.findings if one["resource"] == "connection"} == {
        "test_a.py::test_query": "leak",
        "test_a.py::test_anything": "leak",
    }
    assert "LeakError: connection +1.0/iter" in leaky.text
    connected.write("test_a.py", TESTS.format(close="CONNECTIONS.pop()"))
    fixed = connected.run(*workers)
    assert fixed.last_line == "2 passed"
    assert fixed.verdicts["test_anything", "pooled"] == "ok"


KEPT = """
    import pytest
    from conftest import CONNECTIONS

    class Connection:
        pass

    @pytest.mark.connection_budget(0)
    def test_probe():
        CONNECTIONS.append(Connection())
        {close}

    @pytest.mark.heap_budget("64 MiB")
    def test_gauge(leakcheck):
        CONNECTIONS.append(Connection())
        {close}
        leakcheck.gauge("open", lambda: len(CONNECTIONS), level=0)
"""


def test_its_owner_is_named_as_that_of_a_gauge(connected: Project) -> None:
    connected.write("test_a.py", KEPT.format(close="pass"))
    leaky = connected.run()
    owners = {one["resource"]: one["owner"]["name"] for one in leaky.findings if one["owner"]}
    # Two modules have the list. Which comes first, the garbage collector decides, and from Python 3.14 on differently.
    assert owners.keys() == {"connection", "gauge:open"}
    assert set(owners.values()) in ({"conftest.CONNECTIONS"}, {"test_a.CONNECTIONS"})
    connected.write("test_a.py", KEPT.format(close="CONNECTIONS.clear()"))
    assert connected.run().last_line == "2 passed"


def test_its_marker_is_known_without_the_flag_and_has_a_line_of_help(connected: Project) -> None:
    connected.write("test_a.py", TESTS.format(close="pass"))
    assert connected.run(leakcheck=False).last_line == "2 passed"
    shown = connected.run("--markers", leakcheck=False).text
    assert "@pytest.mark.connection_budget(0, *, per_iteration=0, peak=0, over=N" in shown
    assert "bound the connections that this test retains" in shown
    assert '@pytest.mark.pooled_budget("1 MiB", ' in shown


def test_a_conftest_that_is_loaded_while_tests_are_collected_adds_its_own(project: Project) -> None:
    project.write("conftest.py", CONFTEST.replace("connection", "door"))
    project.write("inner/conftest.py", CONFTEST.replace("pooled", "kept"))
    project.write(
        "inner/test_a.py",
        """
        import pytest, sys

        @pytest.mark.connection_budget(0)
        @pytest.mark.door_budget(0)
        def test_query(request):
            (inner,) = [one for one in request.config.pluginmanager.get_plugins() if "inner" in getattr(one, "__file__", "")]
            inner.CONNECTIONS.append("open")
        """,
    )
    ran = project.run("-W", "error")
    assert (ran.verdicts["test_query", "connection"], ran.status) == ("leak", 1), ran.text


@pytest.mark.parametrize(
    ("probes", "message"),
    [
        ('[Probe("fd", read=int)]', "Probe('fd'): that name is a resource of pytest-leakcheck; choose another"),
        ('[Probe("a", read=int), Probe("a", read=int)]', "Probe('a'): that name is used twice; choose another"),
        (
            '[Probe("Open files", read=int)]',
            "Probe('Open files'): the name is not a lower-case identifier, such as 'connection'",
        ),
        ('[Probe("a", read=int, unit="MiB")]', "Probe('a'): unit='MiB' is neither 'count' nor 'bytes'"),
    ],
)
def test_a_wrong_probe_is_said_before_anything_runs(project: Project, probes: str, message: str) -> None:
    project.write(
        "conftest.py",
        f"from pytest_leakcheck import Probe\ndef pytest_leakcheck_probes(config):\n    return {probes}\n",
    )
    project.write("test_a.py", ONE)
    outcome = project.run()
    assert outcome.status != 0
    assert message in outcome.text
    assert "passed" not in outcome.text


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        ("lambda: 1 / 0", "the probe 'broken' raised ZeroDivisionError: division by zero"),
        ('lambda: "many"', "the probe 'broken' returned 'many', which is not a whole number"),
    ],
)
def test_a_probe_that_does_not_work_is_an_absent_instrument(project: Project, read: str, reason: str) -> None:
    project.write(
        "conftest.py",
        "from pytest_leakcheck import Probe\n"
        f"def pytest_leakcheck_probes(config):\n    return [Probe('broken', read={read})]\n",
    )
    project.write(
        "test_a.py",
        "import pytest\n@pytest.mark.leakcheck\ndef test_it(): pass\n@pytest.mark.broken_budget(0)\ndef test_named(): pass\n",
    )
    outcome = project.run("-rs")
    assert outcome.last_line == "1 passed, 1 skipped"
    assert f"broken: {reason}" in outcome.one_line
    assert f"not read here: broken ({reason})" in outcome.one_line


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
    command = [sys.executable, "-m", "pytest_leakcheck", "report", str(project.folder / "findings.json")]
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
