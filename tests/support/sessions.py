"""Test files that several run: a session over the arms of the cases, and a test in each form that one can have."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from projects import ROOT, Outcome, Project

_ARMS_CONFTEST: Final = """
    import pytest
    from cases.catalog import ARMS

    @pytest.fixture(scope="module")
    def arm(request):
        case, call = ARMS[request.param]
        case.setup()
        yield call
        case.teardown()
"""
_ARMS_SESSION: Final = """
    import pytest
    from cases.catalog import ARMS

    def parameter(name):
        budget = ARMS[name][0].budget
        return pytest.param(name, marks=getattr(pytest.mark, f"{{budget}}_budget")()) if budget else name

    PLAIN = [parameter(name) for name in {arms} if not ARMS[name][0].folder]
    IN_FOLDER = [name for name in {arms} if ARMS[name][0].folder]

    if PLAIN:
        @pytest.mark.leakcheck
        @pytest.mark.parametrize("arm", PLAIN, indirect=True)
        def test_arm(arm): arm()

    if IN_FOLDER:
        @pytest.mark.leakcheck
        @pytest.mark.parametrize("arm", IN_FOLDER, indirect=True)
        def test_arm_in_folder(arm, tmp_path): arm(tmp_path)
"""
REVERSED: Final = """
    def pytest_collection_modifyitems(items): items.reverse()
"""


def write_arms(project: Project, arms: Iterable[str], conftest: str = "", *, marked: bool = True) -> None:
    """Write a session over arms of the cases; without marks, they are screened under ``--leakcheck-scope=all``."""
    session = _ARMS_SESSION.format(arms=list(arms))
    project.write("conftest.py", _ARMS_CONFTEST + conftest)
    project.write("test_it.py", session if marked else session.replace("        @pytest.mark.leakcheck\n", ""))
    (project.folder / "tmp").mkdir()


def run_arms(project: Project, *arguments: str) -> Outcome:
    """Run what `write_arms` has written: all arms take four minutes. Temporary files go to a folder of the project."""
    path, temporary = str(ROOT / "tests"), str(project.folder / "tmp")
    return project.run("--tb=no", *arguments, limit=3600, PYTHONPATH=path, TMPDIR=temporary)


def by_arm(ran: Outcome, arms: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """The findings on each arm, or an empty list: a session that broke off must not look like one without findings."""
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in arms}
    for one in ran.findings:
        found[one["test"].partition("[")[2].removesuffix("]")].append(one)
    return found


def judge_arms(
    arms: Iterable[str], *arguments: str, conftest: str = "", marked: bool = True
) -> dict[str, list[dict[str, Any]]]:
    """The findings on each arm, of a session over all of them."""
    with tempfile.TemporaryDirectory(prefix="arms-") as folder:
        project = Project(Path(folder))
        write_arms(project, arms, conftest, marked=marked)
        return by_arm(run_arms(project, *arguments), arms)


# A file is left open, or not, in every form of a test. What follows the opening is filled in.
FORMS: Final = """
    import asyncio, os, unittest
    import pytest

    KEPT = []

    def work():
        file = os.open(__file__, os.O_RDONLY)
        {after}

    @pytest.mark.fd_budget(0)
    def test_function():
        work()

    @pytest.mark.fd_budget(0)
    class TestClass:
        def test_method(self):
            assert not hasattr(self, "been_here")
            self.been_here = True
            work()

    @pytest.mark.fd_budget(0)
    @pytest.mark.asyncio
    async def test_async():
        await asyncio.sleep(0)
        work()

    @pytest.mark.fd_budget(0)
    class Unit(unittest.TestCase):
        def test_unit(self):
            work()

    @pytest.mark.fd_budget(0)
    class AsyncUnit(unittest.IsolatedAsyncioTestCase):
        async def test_async_unit(self):
            await asyncio.sleep(0)
            work()

    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("value", [1, 2])
    def test_parametrised(value):
        work()

    @pytest.fixture(scope="module")
    def outer():
        yield []

    @pytest.fixture
    def inner(outer):
        yield outer

    @pytest.mark.fd_budget(0)
    def test_module_fixture(inner):
        work()

    @pytest.mark.fd_budget(0)
    def test_tmp_path(tmp_path):
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").write_text("x")
        work()

    @pytest.fixture
    def leaky_fixture():
        yield
        work()

    @pytest.mark.fd_budget(0)
    def test_teardown(leaky_fixture):
        pass
"""
FORMS_COUNT: Final = 10
FORMS_ARMS: Final = {"leaky": "KEPT.append(file)", "fixed": "os.close(file)"}
