"""What users get: what is in the wheel, what it needs, its page, and that it works from a fresh environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

from projects import ROOT, Project
from pytest_leakcheck.model.culprit import is_installed


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_leakcheck", "leakcheck_incidents"}
    assert "pytest_leakcheck/py.typed" in names
    assert "leakcheck_incidents/pyav_loader/leaky.py" in names
    page = ("page.html.jinja", "card.html.jinja", "page.css", "page.js", "chart.css")
    assert {f"pytest_leakcheck/report/html/{name}" for name in page} <= set(names)
    data = {"pytest_leakcheck/baseline/known_libraries.json", "pytest_leakcheck/report/report.schema.json"}
    assert data <= set(names)


def test_what_it_needs(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    assert sorted(need.split(">")[0] for need in needs if "extra ==" not in need) == ["jinja2", "psutil", "pytest"]
    extras = {"batch", "completion", "hub", "native", "pyav", "ray", "report", "test", "tf", "torch", "vram"}
    assert set(metadata.get_all("Provides-Extra", [])) == extras


@pytest.mark.skipif(find_spec("twine") is None, reason="needs twine, of the extra 'test'")
def test_an_index_takes_it(dist: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("PASSED")) == (0, 2), done.stdout + done.stderr


def test_the_page_of_an_index_has_no_relative_link(dist: Path, metadata: Message) -> None:
    page, version = str(metadata.get_payload()), metadata["Version"]
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Documentation", "Source", "Issues", "Changelog"}
    links = re.findall(r"\]\(([^)]*)\)", page) + re.findall(r"(?:href|src)=\"([^\"]*)", page)
    assert [link for link in links if not link.startswith("https://")] == []
    # What leads into the repository leads to the tag of this version, and to a file that is there.
    pages = f"{urls['Source']}/blob/v{version}/"
    files = f"{urls['Source'].replace('github.com', 'raw.githubusercontent.com')}/v{version}/"
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        there = {name.partition("/")[2] for name in sdist.getnames()}
    inside = [link.removeprefix(pages).partition("#")[0] for link in links if link.startswith(pages)]
    assert [path for path in inside if path not in there] == []
    pictures = [link.removeprefix(files) for link in links if link.startswith(files)]
    assert (pictures, pictures[0] in there) == (["docs/report.svg"], True)


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
