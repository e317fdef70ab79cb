"""Where only lines are known, the functions around them are read from the source."""

from __future__ import annotations

from pathlib import Path

import pluggy
import pytest
from _pytest.fixtures import call_fixture_func
from _pytest.runner import pytest_runtest_call

from pytest_leakcheck.attribution.call_paths import text_of, with_functions
from pytest_leakcheck.model.culprit import Site

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
