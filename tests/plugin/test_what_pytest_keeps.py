"""What pytest keeps of a repeated item is put back: no object and no block over 200 iterations, a row per cause.

On the oldest and the newest supported pytest. Blocks are the finest counter there is: one for every object, tracked by
the collector or not.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from projects import OLDEST, Project

ROWS = {
    "empty": "def test_it(): pass",
    "function_fixture_over_module_fixture": """
        @pytest.fixture(scope="module")
        def outer():
            yield []
        @pytest.fixture
        def inner(outer):
            yield outer
        def test_it(inner): pass
    """,
    "function_fixture_over_one_of_its_name": """
        @pytest.fixture(scope="module")
        def outer():
            yield []
        class TestIt:
            @pytest.fixture
            def outer(self, outer):
                yield outer
            def test_it(self, outer): pass
    """,
    "getfixturevalue_of_one_that_overrides": """
        @pytest.fixture(scope="module")
        def outer():
            yield []
        class TestIt:
            @pytest.fixture
            def outer(self, outer):
                yield outer
            def test_it(self, request): request.getfixturevalue("outer")
    """,
    "tmp_path": "def test_it(tmp_path): assert list(tmp_path.iterdir()) == []; (tmp_path / 'file').write_text('x')",
    "leakcheck": "def test_it(leakcheck): leakcheck.gauge('rows', lambda: 3); leakcheck.checkpoint('read')",
    "warnings": "def test_it(): warnings.warn('careful')",
    "print": "def test_it(): print('hello'); sys.stderr.write('there')",
    "record_property": "def test_it(record_property): record_property('name', 'value')",
    "add_marker": "def test_it(request): request.node.add_marker(pytest.mark.slow)",
    "class_instance": """
        class TestIt:
            def test_it(self):
                assert not hasattr(self, 'seen')
                self.seen = [object()]
    """,
    "subtests": """
        def test_it(subtests):
            with subtests.test(msg='one'): pass
    """,
    "unittest_subtests": """
        class Unit(unittest.TestCase):
            def test_it(self):
                with self.subTest(one=1): pass
    """,
    "getfixturevalue": """
        @pytest.fixture(scope="session")
        def outer():
            yield []
        @pytest.fixture
        def inner(outer):
            yield outer
        def test_it(request): request.getfixturevalue('inner')
    """,
    "caplog": "def test_it(caplog): logging.getLogger('x').warning('careful'); assert caplog.records",
}


PYTHONS = pytest.mark.parametrize("python", [OLDEST, sys.executable], ids=["oldest", "newest"])


@PYTHONS
def test_rows(project: Project, python: str) -> None:
    for name, body in ROWS.items():
        source = project.write(f"test_{name}.py", body)
        head = (
            "import logging, sys, unittest, warnings\nimport pytest\n"
            "pytestmark = pytest.mark.leakcheck(iterations=200, resources=['object', 'block'])\n"
        )
        source.write_text(head + source.read_text())
    outcome = project.run("-o", "markers=slow", python=python)
    assert len(outcome.recordings) == len(ROWS), outcome.text
    for recording in outcome.recordings:
        for series in recording["series"]:
            if series["resource"] in ("object", "block"):
                first, last = series["readings"][0], series["readings"][200]
                assert last - first == 0, (recording["test"], series)


def test_tmp_path_leaves_one_folder(project: Project) -> None:
    outcome = project.run_test(
        """
        import pytest
        @pytest.mark.fd_budget(0)
        def test_it(tmp_path): (tmp_path / "file").write_text("x")
        """,
        "--basetemp=kept",
    )
    assert outcome.status == 0, outcome.text
    folders = [path.name for path in (project.folder / "kept").iterdir() if not path.is_symlink()]
    assert len(folders) == 1


def test_pytester_uses_the_same_folder_again(project: Project) -> None:
    outcome = project.run_test(
        """
        import sys

        import pytest

        FOLDERS = set()

        @pytest.mark.leakcheck(iterations=40, warmup=5, resources=["object", "disk"])
        def test_run(pytester, monkeypatch):
            # Of the plugins installed here, one starts a server in each session.
            monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            pytester.makepyfile(test_inner="def test_inner(tmp_path): pass")
            pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
            FOLDERS.add(pytester.path)

        def test_folders():
            # The first run leaves its folder, as in a plain session; the others share one.
            assert len(FOLDERS) == 2
            assert all(len([path for path in sys.path_importer_cache if path.startswith(str(one))]) <= 1 for one in FOLDERS)
        """,
        "-p",
        "pytester",
        "--basetemp=kept",
    )
    assert (outcome.status, outcome.last_line) == (0, "2 passed"), outcome.text
    folders = sorted(path.name for path in (project.folder / "kept").iterdir() if not path.is_symlink())
    assert folders == ["test_run0", "tmp-test_run0"]


def test_warnings_and_subtests_are_reported_once(project: Project) -> None:
    outcome = project.run_test(
        """
        import warnings
        import pytest
        @pytest.mark.fd_budget(0)
        def test_warns(): warnings.warn("careful")
        @pytest.mark.fd_budget(0)
        def test_subtests(subtests):
            with subtests.test(msg="one"): pass
        """,
        "-v",
    )
    assert outcome.text.count("UserWarning: careful") == 1
    assert outcome.last_line == "2 passed, 1 warning, 1 subtests passed"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts what malloc handed out")
@pytest.mark.parametrize("variables", [0, 20])
@PYTHONS
def test_dicts_that_pytest_fills_and_empties_keep_their_size(project: Project, python: str, variables: int) -> None:
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.mark.leakcheck(iterations=150, isolate=True, resources=["heap"])
        def test_it(): pass
        """,
    )
    environment: dict[str, Any] = {f"VARIABLE_{number}": "x" for number in range(variables)}
    outcome = project.run(python=python, **environment)
    series = next(one for one in outcome.recordings[0]["series"] if one["resource"] == "heap")
    assert len(series["readings"]) == 151
    # malloc may round a block of the harness otherwise in one of the first iterations; the dicts take 576 bytes and more,
    # again and again.
    first, later = series["readings"][:10], series["readings"][10:]
    assert set(later) == {later[0]}
    assert max(first) - min(first) <= 16


@pytest.mark.parametrize(
    "fixture",
    [
        '@pytest.fixture\n    def tmp_path(): return HERE / "data"',
        '@pytest.fixture\n    def pytester():\n        class Other: path = HERE / "data"\n        return Other()',
        '@pytest.fixture\n    def linked(tmp_path):\n        tmp_path.rmdir()\n        tmp_path.symlink_to(HERE / "data")',
        '@pytest.fixture(scope="module")\n    def tmp_path(tmp_path_factory):\n        folder = tmp_path_factory.mktemp("m")\n        return folder',
        '@pytest.fixture\n    def tmp_path(tmp_path): return HERE / "data"',
        '@pytest.fixture(scope="session")\n    def tmp_path_factory():\n        class Own:\n            _retention_policy = "all"\n            def mktemp(self, *_, **__): return HERE / "data"\n        return Own()',
        '@pytest.fixture(scope="module", autouse=True)\n    def never():\n        with pytest.MonkeyPatch.context() as patch:\n            patch.setattr("shutil.rmtree", lambda *_, **__: pytest.fail("removed"))\n            yield',
    ],
    ids=["tmp_path", "pytester", "link", "module", "overrides", "factory", "rmtree"],
)
def test_nothing_is_removed_that_pytest_has_not_made_for_the_iteration(project: Project, fixture: str) -> None:
    project.write("data/golden.txt", "golden")
    name = next((word for word in ("linked", "pytester") if f"def {word}" in fixture), "tmp_path")
    ran = project.run_test(
        f"""
    from pathlib import Path
    import pytest
    HERE = Path(__file__).parent

    {fixture}

    def test_first({name}): pass

    @pytest.mark.leakcheck(iterations=5)
    def test_second({name}): pass

    def test_last({name}): assert not isinstance({name}, Path) or {name}.is_dir()
        """,
        "--leakcheck-scope=all",
    )
    assert "3 ok" in ran.text, ran.text
    assert (project.folder / "data" / "golden.txt").read_text() == "golden"


@pytest.mark.parametrize("policy", ["all", "failed", "none"])
@pytest.mark.parametrize("mark", ["", "@pytest.mark.leakcheck(iterations=3, warmup=1)"], ids=["second pass", "marked"])
def test_the_folders_that_stay_are_those_of_plain_pytest(project: Project, policy: str, mark: str) -> None:
    project.write(
        "test_it.py",
        f"""
        import pytest

        @pytest.fixture(scope="module")
        def wide(tmp_path_factory): return tmp_path_factory.mktemp("wide")

        @pytest.fixture
        def below(tmp_path):
            (tmp_path / "below").mkdir()
            return tmp_path / "below"

        {mark}
        def test_real(tmp_path): (tmp_path / "file").touch()

        {mark}
        def test_below(below, wide): (below / "file").touch()

        {mark}
        def test_at_run_time(request): request.getfixturevalue("tmp_path").joinpath("file").touch()

        {mark}
        @pytest.mark.parametrize("name", ["a", "A"])
        def test_case(tmp_path, name): pass
        """,
    )
    found = []
    for leakcheck in (False, True):
        options = ["--leakcheck-scope=all", "--leakcheck-fail-on=none"] if leakcheck else []
        policy_option = f"tmp_path_retention_policy={policy}"
        ran = project.run("-o", policy_option, "--basetemp=kept", *options, leakcheck=leakcheck)
        assert ran.last_line.startswith("5 passed"), ran.text
        kept = project.folder / "kept"
        found.append(sorted(str(path.relative_to(kept)) for path in kept.rglob("*")))
    assert found[1] == found[0]
    assert found[0] or policy == "none"


def test_a_folder_below_that_of_pytest_goes_with_it(project: Project) -> None:
    ran = project.run_test(
        """
        import pytest

        @pytest.fixture
        def tmp_path(tmp_path):
            (tmp_path / "data").mkdir()
            return tmp_path / "data"

        @pytest.mark.leakcheck(iterations=20)
        def test_it(tmp_path): (tmp_path / "x").write_text("x")
        """,
        "--basetemp=kept",
    )
    assert ran.last_line == "1 passed", ran.text
    assert [one.name for one in (project.folder / "kept").iterdir() if not one.is_symlink()] == ["test_it0"]


def test_silent_runs_add_nothing_to_junits_file(project: Project) -> None:
    ran = project.run_test(
        """
        import pytest

        def test_suite(record_testsuite_property): record_testsuite_property("arch", "x")

        @pytest.mark.leakcheck(iterations=5)
        def test_marked(record_testsuite_property): record_testsuite_property("marked", "x")

        def test_attribute(record_xml_attribute): record_xml_attribute("a", "b")
        """,
        "--leakcheck-scope=all",
        "--junit-xml=junit.xml",
        "-o",
        "junit_family=xunit1",
        "-W",
        "ignore",
    )
    assert "3 ok" in ran.text, ran.text
    text = (project.folder / "junit.xml").read_text()
    assert [text.count(part) for part in ('name="arch"', 'name="marked"', "<testcase ")] == [1, 1, 3]


LOGGING = """
    import logging
    import pytest

    LOG, ALONE = logging.getLogger("x"), logging.getLogger("alone")
    ALONE.propagate = False

    @pytest.fixture(scope="module")
    def module():
        yield LOG.warning("module set up")
        LOG.warning("module torn down")

    @pytest.fixture
    def function(module):
        yield LOG.warning("set up")
        LOG.warning("torn down")

    @pytest.mark.fd_budget(0)
    def test_marked(function):
        LOG.warning("marked")
        ALONE.warning("not propagated")

    @pytest.mark.fd_budget(0)
    def test_raises(function, runs=[]):
        LOG.warning("raises later")
        runs.append(1)
        assert len(runs) < 4

    def test_after(function): LOG.warning("after")
"""


def test_silent_runs_add_nothing_to_the_log_file(project: Project) -> None:
    project.write("test_it.py", LOGGING)
    written = {}
    for leakcheck in (False, True):
        scope = ["--leakcheck-scope=all"] if leakcheck else []
        outcome = project.run("--log-file=log", "-o", "log_cli=true", *scope, leakcheck=leakcheck)
        assert outcome.last_line == "3 passed", outcome.text
        live = re.findall("(?m)^WARNING .*", outcome.text)
        written[leakcheck] = live, (project.folder / "log").read_text()
    assert len(written[False][0]) == 12
    assert written[True] == written[False]
    # Nothing to silence.
    assert project.run("-p", "no:logging").last_line == "3 passed"


def test_silent_runs_show_no_fixtures(project: Project) -> None:
    project.write("test_it.py", LOGGING)
    shown = {}
    for leakcheck in (False, True):
        scope = ["--leakcheck-scope=all"] if leakcheck else []
        outcome = project.run("--setup-show", *scope, leakcheck=leakcheck)
        assert outcome.last_line == "3 passed", outcome.text
        shown[leakcheck] = re.findall(r"(?m)^ *(?:SETUP|TEARDOWN) +\w \w+|^ {8}test_it\S+", outcome.text)
    assert len(shown[False]) == 11
    assert shown[True] == shown[False]


def test_a_doctest_has_the_globals_of_its_module_in_each_run(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items: item.add_marker(pytest.mark.fd_budget(0))
        """,
    )
    project.write(
        "names.py",
        '''
        KEPT = []

        def clean():
            """
            >>> "of_this_run" in globals()
            False
            >>> of_this_run = KEPT
            """

        def leaky():
            """
            >>> KEPT.append(open(__file__))
            """
        ''',
    )
    outcome = project.run("--doctest-modules", "names.py")
    assert outcome.verdicts == {("names.clean", "fd"): "ok", ("names.leaky", "fd"): "leak"}, outcome.text


def test_what_a_test_puts_in_the_place_of_its_folder_stays(project: Project) -> None:
    project.write("data/golden.txt", "golden")
    project.copy("program_that_replaces_folders.py")
    # In the usual TMPDIR, silent runs have their folders in the private folder, and all goes with it.
    ran = project.run("--basetemp=kept", "--leakcheck-fail-on=none", TMPDIR=str(project.folder / "data"))
    assert ran.last_line == "5 passed", ran.text
    assert (project.folder / "data" / "golden.txt").read_text() == "golden"
    # Under `tmp_path`, behind links, and where it was moved to: one of each run.
    runs = len([*project.folder.glob("copy-*/kept")])
    assert runs > 3
    assert len([*project.folder.glob("copy-*/golden.txt")]) == 2 * runs
    assert len([*project.folder.glob("kept/test_another_folder[0-9]/golden.txt")]) == runs


@pytest.mark.parametrize("arguments", [(), ("--basetemp=link/kept",), ("-o", "tmp_path_retention_policy=none")])
def test_a_folder_of_a_wider_scope_or_of_another_maker_lives_on(project: Project, arguments: tuple[str, ...]) -> None:
    project.write("elsewhere/file", "")
    (project.folder / "link").symlink_to("elsewhere")
    project.write(
        "conftest.py",
        """
        import pytest
        from pathlib import Path

        @pytest.fixture
        def tmpdir(): return Path(__file__).parent / "elsewhere"

        @pytest.fixture
        def testdir(): return Path(__file__).parent / "elsewhere"
        """,
    )
    project.copy("program_with_folders_of_scopes.py")
    ran = project.run(*arguments, "--leakcheck-fail-on=none", "-Wignore")
    assert ran.last_line == "11 passed", ran.text
    assert "not repeatable" not in ran.text, ran.text
    assert (project.folder / "elsewhere" / "file").exists()
