"""The line of a package that is installed is named: as the line to change if it is under test, else as what it is inside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="site-packages has another place there")

PACKAGE = """
    from pathlib import Path
    KEPT = []
    class Loader:
        def __init__(self, name):
            self.file = Path(name).open()
    def load(name):
        KEPT.append(Loader(name))
"""
TEST = """
    import pytest
    import toxpkg

    @pytest.mark.fd_budget(0)
    def test_load(): toxpkg.load(__file__)
"""


def install(folder: Path, files: dict[str, str], name: str = "tox_pkg") -> None:
    """Do what pip does, without a build."""
    metadata = f"{name}-1.dist-info"
    installed = {
        **files,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{metadata}/RECORD": "".join(f"{one},,\n" for one in files),
    }
    for one, text in installed.items():
        path = folder / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def run(project: Project, *arguments: str, module: str = "toxpkg/__init__.py", config: str = "") -> Outcome:
    folder = project.folder / "lib" / "site-packages"
    install(folder, {module: project.write("source.py", PACKAGE).read_text(encoding="utf-8")})
    project.write("tests/test_it.py", TEST)
    for line in config.splitlines():
        name, _, text = line.partition(": ")
        project.write(name, text.replace("|", "\n"))
    return project.run(*arguments, "tests", PYTHONPATH=str(folder))


def culprit(outcome: Outcome) -> tuple[str, int]:
    site = outcome.finding("test_load")["site"]
    return "/".join(Path(site["file"]).parts[-2:]), site["line"]


@pytest.mark.parametrize(
    ("module", "config"),
    [
        ("toxpkg/__init__.py", "pyproject.toml: [project]|name = 'tox.pkg'"),
        ("toxpkg/__init__.py", "pyproject.toml: [tool.poetry]|name = 'Tox-Pkg'"),
        ("toxpkg/__init__.py", "setup.cfg: [metadata]|name = tox_pkg"),
        ("toxpkg.py", "pyproject.toml: [project]|name = 'tox-pkg'"),
    ],
)
def test_the_installed_project_is_the_programs_own(project: Project, module: str, config: str) -> None:
    outcome = run(project, module=module, config=config)
    assert culprit(outcome) == (f"site-packages/{module}" if "/" not in module else module, 5)
    assert "opened       " in outcome.text
    assert "self.file = Path(name).open()" in outcome.text


def test_a_package_that_is_blamed_is_as_well(project: Project) -> None:
    assert culprit(run(project, "--leakcheck-blame=toxpkg")) == ("toxpkg/__init__.py", 5)


@pytest.mark.parametrize("config", ["", "pyproject.toml: [project]|name = 'other'"])
def test_another_package_is_what_the_line_is_inside(project: Project, config: str) -> None:
    outcome = run(project, config=config)
    assert culprit(outcome) == ("tests/test_it.py", 5)
    assert "inside lib/site-packages/toxpkg/__init__.py:5 " in outcome.text


def test_the_search_for_these_files_is_not_found_as_a_leak(project: Project) -> None:
    """What is imported to read pyproject.toml would add to sys.modules while containers are counted."""
    package = "KEPT = []\ndef load(name):\n    KEPT.append(bytearray(65536))\n"
    folder = project.folder / "lib" / "site-packages"
    install(folder, {"toxpkg/__init__.py": package})
    project.write("setup.cfg", "[metadata]\nname = another\n")
    outcome = project.run_test(TEST.replace("fd_budget(0)", "heap_budget"), PYTHONPATH=str(folder))
    assert outcome.finding("test_load", "heap")["owner"]["name"] == "toxpkg.KEPT"
