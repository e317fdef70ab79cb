"""Tests in the styles of other plugins and of pytest itself: their outcomes are the same when the plugin repeats them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from projects import Project

# The categories of all reports that are logged of a test, by node id; a test with subtests has several.
Outcomes: TypeAlias = Mapping[str, list[str]]


_PYTEST_INI: Final = """
    [pytest]
    addopts = --doctest-modules --continue-on-collection-errors
    filterwarnings = error
    asyncio_default_fixture_loop_scope = function
"""

# Each is `test_*.py` in the project.
_STYLES: Final = sorted(path.name for path in Path(__file__).with_name("sessions").glob("style_*.py"))
_PACKAGE: Final[Mapping[str, str]] = {
    "package/__init__.py": "",
    "package/conftest.py": """
        import pytest
        COUNT = {"package": 0}

        @pytest.fixture(scope="package", params=["x", "y"])
        def of_package(request):
            COUNT["package"] += 1
            yield request.param, COUNT["package"]
    """,
    "package/test_one_of_package.py": """
        def test_first(of_package): assert of_package[0] in "xy"
        def test_set_up_once_each(of_package): assert of_package[1] <= 2
    """,
}


def _file(name: str) -> str:
    return name.replace("style_", "test_")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes]:
    """The outcomes of all styles: of a plain run, and of one that repeats and judges each test."""
    project = Project(tmp_path_factory.mktemp("styles"))
    project.copy("conftest_that_records_outcomes.py", "conftest.py")
    project.write("pytest.ini", _PYTEST_INI)
    for name in _STYLES:
        project.copy(name, _file(name))
    for name, text in _PACKAGE.items():
        project.write(name, text)
    plain = project.run("--outcomes=plain.json", leakcheck=False, cache=True)
    repeated = project.run("--outcomes=repeated.json", "--leakcheck-iterations=8", cache=True)
    assert "INTERNALERROR" not in plain.text + repeated.text, repeated.text
    assert (plain.status, repeated.status) == (1, 1), repeated.text
    assert len(repeated.recordings) > 60, repeated.text
    by_name: tuple[Any, Any] = tuple(
        json.loads((project.folder / f"{name}.json").read_text(encoding="utf-8")) for name in ("plain", "repeated")
    )
    return by_name


@pytest.mark.parametrize("style", [*map(_file, _STYLES), *_PACKAGE])
def test_outcomes_are_the_same(outcomes: tuple[Outcomes, Outcomes], style: str) -> None:
    plain, repeated = ({test: one for test, one in each.items() if test.split("::")[0] == style} for each in outcomes)
    if not style.endswith(("__init__.py", "conftest.py")):
        assert plain
    assert repeated == plain


def test_other_plugins_receive_the_reports_of_subtests_once(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        pytestmark = pytest.mark.fd_budget(0)

        def test_passes(subtests):
            for number in range(3):
                with subtests.test(number=number): pass

        def test_fails_when_repeated(subtests, counter=[]):
            counter.append(1)
            with subtests.test("counted"): assert len(counter) < 3

        def test_last(): pass
        """,
    )
    for options in ((), ("-n", "1")):
        outcome = project.run("-v", "--junitxml=junit.xml", "-x", *options)
        assert (outcome.status, outcome.last_line) == (0, "3 passed, 4 subtests passed"), outcome.text
        # pytest counts the subtests there as well.
        assert 'errors="0" failures="0" skipped="0" tests="7"' in (project.folder / "junit.xml").read_text()


def test_state_that_a_test_leaves_for_others(project: Project) -> None:
    """They see it as often as the test was repeated; isolated, the test leaves none here."""
    ran = project.run_test(
        """
        import pytest

        class TestIt:
            seen = []

            @pytest.mark.fd_budget(0)
            def test_appends(self): self.seen.append(1)

            def test_counts(self): assert len(self.seen) < 2
        """,
        leakcheck=False,
    )
    assert ran.last_line == "2 passed"
    assert project.run().last_line == "1 failed, 1 passed"
    assert project.run("--leakcheck-isolate").last_line == "2 passed"
