"""The wheel that users get: what is in it, what it needs, and that it works from a fresh environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from projects import ROOT, Project
from pytest_leakcheck.model.culprit import is_installed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(folder), str(ROOT)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_leakcheck", "leakcheck_incidents"}
    assert "pytest_leakcheck/py.typed" in names
    assert "leakcheck_incidents/pyav_loader/leaky.py" in names
    page = ("page.html.jinja", "card.html.jinja", "page.css", "page.js", "chart.css")
    assert {f"pytest_leakcheck/report/html/{name}" for name in page} <= set(names)
    data = {"pytest_leakcheck/baseline/known_libraries.json", "pytest_leakcheck/report/report.schema.json"}
    assert data <= set(names)
    needs = [line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert sorted(need.split(">")[0] for need in needs if "extra ==" not in need) == ["jinja2", "psutil", "pytest"]


def test_a_fresh_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory, project: Project) -> None:
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True, capture_output=True, env=clean)
    project.write("pytest.ini", "[pytest]\n")
    ran = project.run_test(
        """
        import os
        import pytest
        import pytest_leakcheck

        @pytest.mark.fd_budget(0)
        def test_leak(): os.open(__file__, os.O_RDONLY)

        def test_where():
            assert "site-packages" in pytest_leakcheck.__file__
            with pytest.raises(ImportError):
                import fixtures
        """,
        python=python,
        leakcheck=False,
    )
    assert ran.last_line == "2 passed"
    outcome = project.run(python=python)
    assert (outcome.status, outcome.finding("test_leak")["verdict"]) == (1, "leak"), outcome.text
    command = str(folder / "bin" / "pytest-leakcheck")
    listed = subprocess.run([command, "repro"], capture_output=True, text=True, check=True)
    assert "needs av and numpy: pip install 'pytest-leakcheck[pyav]'" in listed.stdout


@pytest.fixture
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has the wheel, and what else this one has; not the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", vars=paths))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    others = {sysconfig.get_path("purelib"), *(path for path in sys.path if is_installed(path))}
    (packages / "others.pth").write_text("\n".join(others), encoding="utf-8")
    return str(folder / "bin" / "python")


def test_the_fixed_incidents_run_by_the_name_of_their_package(installed: str, project: Project) -> None:
    # One of the command's tests, and only what is decided by counts.
    chosen = (
        "--pyargs",
        "leakcheck_incidents.pyav_loader",
        "-k",
        "CollectorOff and fixed",
        "--leakcheck-iterations=13",
    )
    ran = project.run(*chosen, python=installed)
    assert (ran.finding("test_switch[fixed]")["verdict"], ran.status) == ("ok", 0), ran.text
    command = [installed, "-c", "import leakcheck_incidents as package; print(package.__file__)"]
    assert "site-packages" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
