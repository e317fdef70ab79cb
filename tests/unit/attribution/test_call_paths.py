"""A call path is read from the outside in: what is pytest's is cut off, and what the author can change is pointed at."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pluggy
import pytest
from _pytest import fixtures, runner
from _pytest.fixtures import call_fixture_func
from _pytest.runner import pytest_runtest_call

import pytest_leakcheck.runner.repetition
from pytest_leakcheck.attribution.call_paths import is_harness, is_own, read_path, set_project, text_of, with_functions
from pytest_leakcheck.attribution.tracing.tracer import OWN
from pytest_leakcheck.model.culprit import Site, touches

CALL = Site(runner.__file__, 179, "pytest_runtest_call")
SETUP = Site(runner.__file__, 165, "pytest_runtest_setup")
TEARDOWN = Site(runner.__file__, 190, "pytest_runtest_teardown")
FIXTURE = Site(fixtures.__file__, 900, "call_fixture_func")
FINISH = Site(fixtures.__file__, 950, "_teardown_yield_fixture")
TEST = Site("/project/tests/test_decode.py", 12, "test_decode", "frames()")
FRAMES = Site("/project/decode/loader.py", 41, "frames", "mkdtemp()")
LIBRARY = Site(tempfile.__file__, 368, "mkdtemp", "mkdir()")
INSTALLED = Site("/venv/lib/python3.11/site-packages/av/container.py", 7, "open")
MEASURE = Site(pytest_leakcheck.runner.repetition.__file__, 1, "measure")


def test_the_tests_own_part_begins_after_the_harness() -> None:
    where = read_path([Site("/venv/bin/pytest", 8, "<module>"), CALL, TEST, FRAMES, LIBRARY])
    assert where is not None
    assert where.path == (TEST, FRAMES, LIBRARY)
    assert where.site == FRAMES
    assert where.path[-1] == LIBRARY
    assert (where.phase, where.fixture) == ("call", "")


@pytest.mark.parametrize(
    ("path", "phase", "fixture"),
    [
        ((SETUP, FIXTURE, Site("/project/conftest.py", 3, "pipeline")), "setup", "pipeline"),
        ((SETUP, FIXTURE, Site("/project/conftest.py", 3, "Cases.pipeline"), FRAMES), "setup", "pipeline"),
        ((TEARDOWN, FINISH, Site("/project/conftest.py", 5, "pipeline")), "teardown", "pipeline"),
        ((SETUP, Site("/project/conftest.py", 3, "setup_function")), "setup", ""),
        ((MEASURE, FRAMES), "", ""),
        # A test may ask for a fixture while it runs.
        ((CALL, TEST, FIXTURE, Site("/project/conftest.py", 3, "pipeline")), "call", "pipeline"),
    ],
)
def test_the_phase_and_the_fixture_are_read_from_pytests_own_frames(
    path: tuple[Site, ...], phase: str, fixture: str
) -> None:
    where = read_path(path)
    assert where is not None
    assert (where.phase, where.fixture) == (phase, fixture)


def test_where_all_is_installed_the_innermost_line_outside_the_standard_library_is_the_site() -> None:
    where = read_path([CALL, INSTALLED, LIBRARY])
    assert where is not None
    assert where.site == INSTALLED
    assert where.path[-1] == LIBRARY


def test_what_the_harness_does_itself_is_nowhere() -> None:
    assert read_path([TEST, CALL]) is None
    assert read_path([]) is None


def test_files_are_told_apart_by_where_they_lie() -> None:
    assert is_harness(runner.__file__)
    assert is_harness(pytest_leakcheck.runner.repetition.__file__)
    assert is_harness("/venv/lib/python3.11/site-packages/pytest_asyncio/plugin.py")
    assert not is_harness("/home/me/pytest_decode/loader.py")
    # A folder may be called pytest.
    assert not is_harness("/home/me/pytest/_pytest/decode.py")
    assert is_own("/home/me/pytest/decode.py")
    assert not is_own(os.__file__)
    assert not is_own(INSTALLED.file)
    assert not is_own("<frozen importlib._bootstrap>")


def test_a_file_is_of_the_plugin_by_its_folder_not_by_how_that_begins() -> None:
    folder = Path(pytest_leakcheck.__file__).parent
    assert OWN[pytest_leakcheck.runner.repetition.__file__]
    assert not OWN[str(folder.with_name(f"{folder.name}_extra") / "module.py")]


def test_a_path_touches_a_package_by_a_folder_or_a_module_of_its_name() -> None:
    assert touches([TEST, FRAMES], ["decode"])
    assert touches([TEST], ["numpy", "test_decode"])
    assert touches([INSTALLED], ["av"])
    assert not touches([TEST, FRAMES], ["loaders"])
    assert not touches([TEST, FRAMES], ["project/decode"])
    assert not touches([], ["decode"])
    assert Path(FRAMES.file).stem == "loader"


@pytest.fixture
def _restored() -> Iterator[None]:
    is_own.cache_clear()
    yield
    set_project(Path("/nowhere"), ())
    is_own.cache_clear()


def file_of(name: str) -> str:
    return next(str(one.locate()) for one in distribution(name).files or () if one.suffix == ".py")


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(
    ("file", "text", "packages", "own"),
    [
        ("pyproject.toml", "[project]\nname = 'PSUtil'", (), True),
        ("pyproject.toml", "[tool.poetry]\nname = 'psutil'", (), True),
        ("setup.cfg", "[metadata]\nname = psutil", (), True),
        ("setup.cfg", "", ("psutil",), True),
        ("pyproject.toml", "[project]\nname = 'not-installed'", ("not_installed_either",), False),
        ("pyproject.toml", "[project]\ndynamic = ['name']", (), False),
        ("pyproject.toml", "= broken", (), False),
        ("setup.cfg", "\xff", (), False),
    ],
)
def test_installed_files_are_the_projects_by_the_name_of_their_distribution(
    tmp_path: Path, file: str, text: str, packages: tuple[str, ...], own: bool
) -> None:
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    set_project(tmp_path, packages)
    assert is_own(file_of("psutil")) is own
    assert not is_own(file_of("pytest"))


SOURCE = """\
import os

KEPT = []

def outer(path):
    def inner():
        return open(path)

    KEPT.append(inner())

class Loader:
    async def switch(self):
        return [
            outer(name)
            for name in os.listdir()
        ]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "loader.py"
    path.write_text(SOURCE)
    return str(path)


def test_a_path_of_lines_gets_functions_and_what_they_call(file: str) -> None:
    path = with_functions([Site(file, 14, ""), Site(file, 9, ""), Site(file, 7, "")])
    assert [(site.function, site.call) for site in path] == [
        ("Loader.switch", "outer()"),
        ("outer", "outer.<locals>.inner()"),
        ("outer.<locals>.inner", ""),
    ]
    assert text_of(path[-1]) == "return open(path)"
    assert with_functions([]) == ()


def test_the_phase_is_asked_of_the_runner_itself() -> None:
    """pytest's own lines, of which those that begin a phase or run a fixture have functions with a name."""
    begins = [pytest_runtest_call.__code__, call_fixture_func.__code__]
    path = [Site(code.co_filename, line, "") for code in begins for _start, _end, line in code.co_lines() if line]
    named = [site.function for site in with_functions([*path, Site(pluggy.__file__, 1, "")])]
    assert set(named[:-1]) == {"pytest_runtest_call", "call_fixture_func"}
    assert named[-1] == "?"
