"""A pytest plugin that keeps something of each run of a test is named as such, and does not hide a leak of the test."""

from __future__ import annotations

import pytest

from projects import Outcome, Project

pytestmark = pytest.mark.laboratory

RECORDER = """
    import pytest

    class Run:
        def __init__(self, *values): self.values = [*values]

    class Recorder:
        def __init__(self): self.runs, self.by_phase = [], {}

        def pytest_runtest_setup(self, item):
            self.runs.append(Run(item, item.module))

        def pytest_runtest_makereport(self, item, call):
            self.by_phase.setdefault(item.nodeid, {}).setdefault(call.when, []).append(Run(call.start, bytearray(700)))

    RECORDS = []

    @pytest.fixture(autouse=True)
    def recorded(request): RECORDS.append(Run(request.node))

    @pytest.fixture
    def record(): return RECORDS.append

    def pytest_configure(config):
        config.pluginmanager.register(Recorder(), "recorder-object")
"""
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: pytest-recorder\nVersion: 1.0\n",
    "entry_points.txt": "[pytest11]\nrecording = recorder.plugin\n",
    "RECORD": "recorder/plugin.py,,\nrecorder/__init__.py,,\n",
}
TESTS = """
    import os
    import pytest

    KEPT = []
    pytestmark = pytest.mark.leakcheck(iterations=24, resources=("fd", "heap", "object"))

    class Mine:
        def __init__(self): self.parts = [[] for _ in range(30)]

    def test_clean(): pass

    def test_fd(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.leakcheck(iterations=24, resources=("object",))
    def test_object(): KEPT.append(Mine())

    @pytest.mark.leakcheck(iterations=24, resources=("heap",))
    def test_heap(): KEPT.append(bytearray(20_000))
"""
KEPT_BY = "kept by the pytest plugin pytest-recorder, which records each run of a test"


def run(project: Project, *options: str, recorder: str = RECORDER, tests: str = TESTS) -> Outcome:
    """Run the tests with the plugin installed, as pip does it: found by its entry point."""
    project.write("env/site-packages/recorder/__init__.py", "")
    project.write("env/site-packages/recorder/plugin.py", recorder)
    for name, text in METADATA.items():
        project.write(f"env/site-packages/pytest_recorder-1.0.dist-info/{name}", text)
    project.write("test_it.py", tests)
    return project.run(*options, PYTHONPATH="env/site-packages")


def test_the_plugin_is_named_and_a_leak_beside_it_is_found(project: Project) -> None:
    outcome = run(project)
    assert outcome.last_line == "3 failed, 1 passed", outcome.text
    for resource in ("heap", "object"):
        clean = outcome.finding("test_clean", resource)
        assert (clean["verdict"], clean["colour"]) == ("inconclusive", "yellow"), outcome.text
        assert clean["reason"] == KEPT_BY
        assert "-p no:recording" in clean["advice"]
    assert outcome.verdicts["test_clean", "fd"] == "ok"
    for name, resource in (("test_fd", "fd"), ("test_object", "object"), ("test_heap", "heap")):
        leaky = outcome.finding(name, resource)
        assert leaky["verdict"] == "leak", outcome.text
        assert leaky["culprit"]["owner"]["name"] == "test_it.KEPT"
    # 32 gc objects: an instance, its list, and 30 lists; what the plugin keeps is left out.
    assert outcome.finding("test_object", "object")["slope"] == pytest.approx(32, abs=1.5)


def test_without_the_plugin_all_is_decided(project: Project) -> None:
    outcome = run(project, "-p", "no:recording", "-k", "clean")
    assert set(outcome.verdicts.values()) == {"ok"}, outcome.text


def test_the_plugin_under_test_is_not_excused(project: Project) -> None:
    project.write("pyproject.toml", '[project]\nname = "pytest-recorder"\n')
    outcome = run(project, "-k", "clean")
    assert outcome.finding("test_clean", "heap")["verdict"] == "leak", outcome.text
    assert "kept by the pytest plugin" not in outcome.text


def test_a_conftest_is_not_excused(project: Project) -> None:
    project.write("conftest.py", RECORDER)
    outcome = run(project, "-k", "clean", recorder="")
    assert outcome.finding("test_clean", "heap")["verdict"] == "leak", outcome.text


def test_what_a_test_stores_in_a_plugin_is_never_ok(project: Project) -> None:
    tests = """
    import os
    import pytest

    class Mine: pass

    @pytest.mark.leakcheck(iterations=24, resources=("fd", "object"))
    def test_objects(record): record(Mine())

    @pytest.mark.fd_budget(0)
    def test_fd(record): record(os.open(__file__, os.O_RDONLY))
    """
    outcome = run(project, recorder=RECORDER.replace("autouse=True", ""), tests=tests)
    assert outcome.verdicts["test_objects", "object"] == "inconclusive", outcome.text
    assert outcome.verdicts["test_fd", "fd"] == "leak"


def test_a_plugin_that_only_refers_to_the_test_does_not_excuse_it(project: Project) -> None:
    """The plugin keeps the last item, through which references lead to the module of the test and all that it keeps."""
    recorder = """
    LAST = []

    def pytest_runtest_setup(item):
        LAST[:] = [item, item.module, vars(item.module)["leak"]]
    """
    tests = """
    import pytest

    KEPT = []
    def leak(): KEPT.append([])

    @pytest.mark.leakcheck(iterations=24, resources=("object",))
    def test_it(): leak()
    """
    outcome = run(project, recorder=recorder, tests=tests)
    assert outcome.finding("test_it", "object")["verdict"] == "leak", outcome.text
