"""A pytest plugin that keeps what it makes of each report leaves no growth; one that keeps more of a run is the owner."""

from __future__ import annotations

import pytest

from projects import Outcome, Project

RECORDER = """
    class Run:
        def __init__(self, *values): self.values = [*values]

    class Recorder:
        def __init__(self): self.by_phase = {}

        def pytest_runtest_makereport(self, item, call):
            self.by_phase.setdefault(item.nodeid, {}).setdefault(call.when, []).append(Run(call.start, bytearray(700)))

    def pytest_configure(config):
        config.pluginmanager.register(Recorder(), "recorder-object")
"""
IN_SET_UP = """
    class Recorder:
        def __init__(self): self.runs = []

        def pytest_runtest_setup(self, item): self.runs.append([item.name])

    def pytest_configure(config):
        config.pluginmanager.register(Recorder(), "recorder-object")
"""
IN_FIXTURE = """
    import pytest

    RECORDS = []

    @pytest.fixture(autouse=True)
    def recorded(request): RECORDS.append([request.node.name])

    def pytest_configure(config): pass
"""
METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: pytest-recorder\nVersion: 1.0\n",
    "entry_points.txt": "[pytest11]\nrecording = recorder.plugin\n",
    "RECORD": "recorder/plugin.py,,\nrecorder/__init__.py,,\n",
}
TESTS = """
    import pytest

    KEPT = []
    pytestmark = pytest.mark.leakcheck(iterations=24, resources=("heap", "object"))

    def test_clean(): pass

    @pytest.mark.leakcheck(iterations=24, resources=("object",))
    def test_object(): KEPT.append([])
"""


def run(project: Project, *options: str, recorder: str = RECORDER) -> Outcome:
    """Run the tests with the plugin installed, as pip does it: found by its entry point."""
    project.write("env/site-packages/recorder/__init__.py", "")
    project.write("env/site-packages/recorder/plugin.py", recorder)
    for name, text in METADATA.items():
        project.write(f"env/site-packages/pytest_recorder-1.0.dist-info/{name}", text)
    return project.run_test(TESTS, *options, PYTHONPATH="env/site-packages")


def test_a_plugin_that_records_reports_makes_no_growth(project: Project) -> None:
    outcome = run(project)
    assert outcome.last_line == "1 failed, 1 passed", outcome.text
    assert set(outcome.verdicts.values()) == {"ok", "leak"}
    found = outcome.finding("test_object", "object")
    assert found["culprit"]["owner"]["name"] == "test_it.KEPT"
    assert found["slope"] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("recorder", "owner"),
    [(IN_SET_UP, "recorder.plugin.Recorder.runs"), (IN_FIXTURE, "recorder.plugin.RECORDS")],
    ids=["set-up", "fixture"],
)
def test_a_plugin_that_records_the_run_itself_is_the_owner(project: Project, recorder: str, owner: str) -> None:
    outcome = run(project, "-k", "clean", recorder=recorder)
    found = outcome.finding("test_clean", "object")
    assert (found["verdict"], found["culprit"]["owner"]["name"]) == ("leak", owner), outcome.text
    assert ", of an installed pytest plugin\n" in outcome.text


def test_a_plugin_of_the_project_and_a_conftest_see_the_reports_of_one_run(project: Project) -> None:
    """They may skip a later test because of a report, so those of repeated runs would change outcomes."""
    project.write("pyproject.toml", '[project]\nname = "pytest-recorder"\n')
    assert run(project, "-k", "clean").finding("test_clean", "heap")["verdict"] == "ok"
    project.write("conftest.py", RECORDER)
    assert run(project, "-k", "clean", recorder="").finding("test_clean", "heap")["verdict"] == "ok"
