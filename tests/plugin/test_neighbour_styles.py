"""Tests in the styles of other plugins and of pytest itself: their outcomes are the same when the plugin repeats them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import pytest

from projects import Project

# The categories of all reports that are logged of a test, by node id; a test with subtests has several.
Outcomes: TypeAlias = Mapping[str, list[str]]

_CONFTEST: Final = """
    import json
    from pathlib import Path

    import pytest

    OUTCOMES = {}

    def pytest_addoption(parser): parser.addoption("--outcomes")

    def pytest_configure(config):
        global CONFIG
        CONFIG = config
        from hypothesis import settings
        settings.register_profile("short", max_examples=5)
        settings.load_profile("short")

    def pytest_collection_modifyitems(config, items):
        if config.option.leakcheck:
            for item in items: item.add_marker(pytest.mark.leakcheck)

    def pytest_runtest_logreport(report):
        category = CONFIG.hook.pytest_report_teststatus(report=report, config=CONFIG)[0]
        # A passed set-up or tear-down has no category.
        if category: OUTCOMES.setdefault(report.nodeid, []).append(f"{category} in {report.when}")

    def pytest_unconfigure(config): Path(config.option.outcomes).write_text(json.dumps(OUTCOMES))
"""

_PYTEST_INI: Final = """
    [pytest]
    addopts = --doctest-modules --continue-on-collection-errors
    filterwarnings = error
    asyncio_default_fixture_loop_scope = function
"""

_STYLES: Final[Mapping[str, str]] = {
    "plain.py": """
        import pytest

        def test_passes(): pass
        def test_fails(): assert 0
        def test_skips(): pytest.skip("not here")
        def test_errors(missing_fixture): pass

        @pytest.mark.skip(reason="never")
        def test_is_skipped(): pass

        def test_imports(): pytest.importorskip("no_such_module_of_anyone")
        def test_raises_system_exit(): raise SystemExit(3)

        class TestClass:
            def setup_method(self): self.one = 1
            def teardown_method(self): del self.one
            def test_method(self): assert self.one == 1
            @classmethod
            def setup_class(cls): cls.shared = [1]
            def test_shared(self): assert self.shared == [1]
            @staticmethod
            def test_static(): pass

        def setup_module(module): module.READY = True
        def test_module_is_ready(): assert READY
    """,
    "expected_failures.py": """
        import pytest

        @pytest.mark.xfail(reason="known")
        def test_known(): assert 0

        @pytest.mark.xfail(reason="known")
        def test_not_any_more(): pass

        @pytest.mark.xfail(reason="known", strict=True)
        def test_strict(): assert 0

        @pytest.mark.xfail(reason="known", strict=True)
        def test_strict_but_passes(): pass

        @pytest.mark.xfail(raises=ValueError)
        def test_raises(): raise ValueError

        @pytest.mark.xfail(run=False)
        def test_is_not_run(): raise SystemExit

        def test_inside(): pytest.xfail("seen inside")

        def test_added(request):
            request.applymarker(pytest.mark.xfail(reason="added"))
            assert 0

        @pytest.fixture
        def broken(): raise ValueError

        @pytest.mark.xfail
        def test_in_set_up(broken): pass

        @pytest.fixture
        def ends_badly():
            yield
            raise ValueError

        @pytest.mark.xfail
        def test_in_tear_down(ends_badly): pass
    """,
    "hypothesis_functions.py": """
        import pytest
        from hypothesis import HealthCheck, assume, example, given, settings, strategies as st

        @given(st.integers())
        def test_property(number): assert number == int(str(number))

        @given(st.integers(0, 100))
        def test_fails(number): assert number < 20

        @pytest.fixture(scope="module")
        def base(): return 10

        @given(number=st.integers())
        def test_with_a_module_fixture(base, number): assert number + base > number

        @pytest.mark.parametrize("base", [2, 10])
        @given(number=st.integers(0, 50))
        def test_parametrized(base, number): assert number * base >= number

        @pytest.mark.xfail
        @given(st.booleans())
        def test_known(flag): assert flag
    """,
    "with_asyncio.py": """
        import asyncio
        import pytest
        import pytest_asyncio

        pytestmark = pytest.mark.asyncio

        @pytest_asyncio.fixture
        async def server():
            task = asyncio.create_task(asyncio.sleep(60))
            yield task
            task.cancel()
            with pytest.raises(asyncio.CancelledError): await task

        @pytest_asyncio.fixture(scope="module", loop_scope="module")
        async def wide():
            await asyncio.sleep(0)
            return asyncio.get_running_loop()

        async def test_awaits(): await asyncio.sleep(0)
        async def test_fails(): assert await asyncio.sleep(0, False)
        async def test_with_a_fixture(server): assert not server.done()

        @pytest.mark.asyncio(loop_scope="module")
        async def test_on_the_loop_of_the_module(wide): assert asyncio.get_running_loop() is wide

        @pytest.mark.asyncio(loop_scope="module")
        async def test_on_it_again(wide): assert asyncio.get_running_loop() is wide
""",
    "with_anyio.py": """
        import anyio
        import pytest

        pytestmark = pytest.mark.anyio

        @pytest.fixture
        def anyio_backend(): return "asyncio"

        @pytest.fixture
        async def streams():
            send, receive = anyio.create_memory_object_stream(1)
            async with send, receive: yield send, receive

        async def test_awaits(): await anyio.sleep(0)
        async def test_fails(): assert await anyio.sleep(0)

        async def test_streams(streams):
            send, receive = streams
            async with anyio.create_task_group() as group:
                group.start_soon(send.send, 3)
                assert await receive.receive() == 3
""",
    "with_unittest.py": """
        import unittest

        class Case(unittest.TestCase):
            @classmethod
            def setUpClass(cls): cls.shared = []
            @classmethod
            def tearDownClass(cls): del cls.shared

            def setUp(self):
                self.numbers = [1]
                self.addCleanup(self.numbers.clear)
            def tearDown(self): self.assertEqual(self.numbers, [1])

            def test_passes(self): self.assertEqual(self.shared, [])
            def test_fails(self): self.fail("said")
            def test_skips(self): self.skipTest("not here")
            @unittest.skip("never")
            def test_is_skipped(self): pass
            @unittest.expectedFailure
            def test_known(self): self.fail("known")
            @unittest.expectedFailure
            def test_not_any_more(self): pass
            def test_subtests(self):
                for number in range(3):
                    with self.subTest(number=number): self.assertLess(number, 3)
            def test_failing_subtests(self):
                for number in range(3):
                    with self.subTest(number=number): self.assertNotEqual(number, 1)

        class Broken(unittest.TestCase):
            @classmethod
            def setUpClass(cls): raise ValueError("set-up")
            def test_one(self): pass
            def test_two(self): pass

        class EndsBadly(unittest.TestCase):
            def setUp(self): self.addCleanup(self.fail, "clean-up")
            def test_one(self): pass
    """,
    "with_subtests.py": """
        import pytest

        def test_all_pass(subtests):
            for number in range(3):
                with subtests.test("number", number=number): pass

        def test_one_fails(subtests):
            for number in range(3):
                with subtests.test("number", number=number): assert number != 1

        def test_fails_after_them(subtests):
            with subtests.test("first"): pass
            assert 0

        @pytest.mark.xfail
        def test_known(subtests):
            with subtests.test("first"): assert 0
    """,
    "doctests.py": '''
        """Doctests of a module.

        >>> twice(2)
        4
        >>> print("said")
        said
        """

        def twice(number):
            """
            >>> twice(1)
            2
            >>> twice("a")
            'aa'
            """
            return 2 * number

        def wrong():
            """
            >>> wrong()
            3
            """

        def skipped():
            """
            >>> skipped()  # doctest: +SKIP
            3
            """

        class Class:
            """
            >>> from pytest import skip
            >>> Class().name
            'one'
            """
            name = "one"

        def uses_a_fixture():
            """
            >>> path = getfixture("tmp_path")
            >>> path.is_dir()
            True
            """
    ''',
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
    "scopes.py": """
        import pytest

        COUNTS = dict.fromkeys(["function", "class", "module", "session"], 0)

        def counted(scope):
            @pytest.fixture(scope=scope, params=["a", "b"], name=f"of_{scope}")
            def fixture(request):
                COUNTS[scope] += 1
                yield request.param + str(COUNTS[scope])
                assert COUNTS[scope] > 0
            return fixture

        of_function, of_class, of_module, of_session = map(counted, COUNTS)

        def test_function(of_function): assert of_function[0] in "ab"
        def test_module(of_module): assert of_module in ("a1", "b2")
        def test_session(of_session): assert of_session in ("a1", "b2")

        class TestClass:
            def test_class(self, of_class): assert of_class in ("a1", "b2")
            def test_class_again(self, of_class): assert of_class in ("a1", "b2")

        @pytest.fixture(scope="module")
        def list_of_module():
            kept = []
            yield kept
            kept.clear()

        @pytest.fixture
        def entry(list_of_module):
            list_of_module.append(1)
            yield list_of_module
            list_of_module.pop()

        def test_a_function_fixture_over_a_module_fixture(entry): assert entry == [1]
        @pytest.mark.parametrize("of_function", ["c", "d"], indirect=True)
        def test_indirect(of_function): assert of_function[0] in "cd"

        @pytest.fixture(scope="module", autouse=True)
        def cannot_be_set_up_twice(request):
            assert not hasattr(request.module, "SET_UP")
            request.module.SET_UP = True

        def test_of_a_dynamic_fixture(request): assert request.getfixturevalue("entry") == [1]
        def test_finalizers(request, list_of_module):
            list_of_module.append(2)
            request.addfinalizer(list_of_module.clear)
    """,
    "tear_down.py": """
        import pytest

        @pytest.fixture
        def checks():
            state = {}
            yield state
            assert state["done"]

        def test_asserts_in_tear_down(checks): checks["done"] = True
        def test_fails_in_tear_down(checks): checks["done"] = False

        @pytest.fixture(scope="module")
        def fails_at_the_end():
            yield
            raise ValueError("at the end of the module")

        def test_passes(fails_at_the_end): pass
        def test_last(fails_at_the_end): pass

        @pytest.fixture(scope="class")
        def skips_the_class(): pytest.skip("by a fixture of the class")

        @pytest.mark.usefixtures("skips_the_class")
        class TestSkipped:
            def test_one(self): pass
            def test_two(self): pass
    """,
    "builtin_fixtures.py": """
        import logging, os, signal, sys, warnings
        import pytest

        def test_capsys(capsys):
            print("said")
            assert capsys.readouterr().out == "said\\n"

        def test_capfd(capfd):
            os.write(1, b"said")
            assert capfd.readouterr().out == "said"

        @pytest.fixture
        def logs(caplog):
            logging.getLogger("one").warning("in set-up")
            yield caplog
            assert [record.message for record in caplog.get_records("call")] == ["in the test"]

        def test_records_of_the_phases(logs):
            logging.getLogger("one").warning("in the test")
            assert [record.message for record in logs.get_records("setup")] == ["in set-up"]

        def test_tmp_path(tmp_path):
            assert not list(tmp_path.iterdir())
            (tmp_path / "one").write_text("x")

        def test_tmp_path_is_named(tmp_path): assert tmp_path.name == "test_tmp_path_is_named0"

        def test_a_folder_by_its_name(tmp_path_factory): tmp_path_factory.mktemp("exact", numbered=False)

        def test_monkeypatch(monkeypatch, tmp_path):
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("ONE", "1")
            monkeypatch.syspath_prepend(tmp_path)
            monkeypatch.setattr(os, "ONE", 1, raising=False)
            monkeypatch.setitem(sys.modules, "one", os)
            (tmp_path / "relative").write_text("x")
            assert os.listdir() == ["relative"]
            assert not hasattr(sys, "ONE")

        def test_chdir_that_stays(tmp_path): os.chdir(tmp_path)
        def test_after_it(): assert os.path.isdir(os.getcwd())

        def test_a_warning_is_an_error(): warnings.warn("said")

        @pytest.mark.filterwarnings("default")
        def test_a_warning_once():
            for _ in range(3): warnings.warn("said once")

        def test_an_unraisable_exception():
            class Broken:
                def __del__(self): raise ValueError("in a finalizer")
            Broken()

        def test_a_failing_thread():
            import threading
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()

        def test_signal_handler_that_stays(): signal.signal(signal.SIGUSR2, lambda *_: None)

        def test_properties(record_property, record_testsuite_property):
            record_property("one", 1)
            record_testsuite_property("two", 2)

        def test_current_test(): assert os.environ["PYTEST_CURRENT_TEST"].endswith("::test_current_test (call)")

        def test_no_tracer(): assert sys.gettrace() is None and sys.getprofile() is None
        def test_collector():
            import gc
            assert gc.isenabled() and gc.get_threshold()[0] > 0
        def test_low_descriptors():
            number = os.open(os.devnull, os.O_RDONLY)
            os.close(number)
            assert number < 64
    """,
    "once.py": """
        import pytest

        def test_exits_when_repeated(counter=[]):
            counter.append(1)
            if len(counter) > 2: raise SystemExit(1)

        def test_imports_once():
            import sys
            assert "wave" not in sys.modules
            import wave

        @pytest.mark.parametrize("kept", [[]])
        def test_mutable_parameter(kept):
            assert kept == []
            kept.append(1)

        @pytest.mark.parametrize("value", [object(), lambda: 1, type, b"x", None, float("nan")])
        def test_parameters_of_each_kind(value): assert value is value
    """,
    "hooks_of_items.py": """
        import pytest

        @pytest.fixture
        def report_after(request):
            yield
            assert request.node.passed_before is True

        @pytest.fixture(autouse=True)
        def name(request): request.node.passed_before = True

        def test_state_of_the_node(report_after): pass

        def pytest_generate_tests(metafunc):
            if "generated" in metafunc.fixturenames: metafunc.parametrize("generated", range(2), scope="module")

        def test_generated(generated): assert generated in (0, 1)

        @pytest.mark.parametrize("one", [1, pytest.param(2, marks=pytest.mark.xfail), pytest.param(3, marks=pytest.mark.skip)])
        @pytest.mark.parametrize("two", ["a", "b"], ids=str.upper)
        def test_marks_of_parameters(one, two): assert one == 1
    """,
}


def _file(name: str) -> str:
    return name if "/" in name else f"test_{name}"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes]:
    """The outcomes of all styles: of a plain run, and of one that repeats and judges each test."""
    project = Project(tmp_path_factory.mktemp("styles"))
    project.write("conftest.py", _CONFTEST)
    project.write("pytest.ini", _PYTEST_INI)
    for name, text in _STYLES.items():
        project.write(_file(name), text)
    plain = project.run("--outcomes=plain.json", leakcheck=False, cache=True)
    repeated = project.run("--outcomes=repeated.json", "--leakcheck-iterations=8", cache=True)
    assert "INTERNALERROR" not in plain.text + repeated.text, repeated.text
    assert (plain.status, repeated.status) == (1, 1), repeated.text
    assert len(repeated.recordings) > 60, repeated.text
    by_name: tuple[Any, Any] = tuple(
        json.loads((project.folder / f"{name}.json").read_text(encoding="utf-8")) for name in ("plain", "repeated")
    )
    return by_name


@pytest.mark.parametrize("style", [*map(_file, _STYLES)])
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
