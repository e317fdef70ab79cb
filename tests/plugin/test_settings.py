"""Settings of the configuration and of folders; without ``--leakcheck``, nothing is imported or run that is not needed."""

from __future__ import annotations

import pytest

from projects import Project


@pytest.mark.parametrize("table", ["tool.pytest", "tool.pytest.ini_options"])
def test_switched_on_in_the_configuration(project: Project, table: str) -> None:
    (project.folder / "pytest.ini").unlink()
    project.write(
        "pyproject.toml", f"[{table}]\nleakcheck = true\nleakcheck_max_time = 5.5\nleakcheck_iterations = 15\n"
    )
    project.write("test_it.py", "import pytest\n@pytest.mark.fd_budget(0)\ndef test_it(): pass")
    outcome = project.run("--leakcheck-json=findings.json", leakcheck=False)
    assert "leakcheck: 15 iterations, at most 5.5 s per test" in outcome.text
    assert outcome.finding("test_it")["iterations"] == 15


def test_the_default_is_set_in_the_file_only_if_it_is_written_there(project: Project) -> None:
    """A `max_time` of 30 s that the user has set is not extended."""
    project.write(
        "test_it.py",
        """
        from pytest_leakcheck.plugin import keys

        def test_it(pytestconfig):
            settings = pytestconfig.stash[keys.SETTINGS]
            print("sources:", settings.sources["max_time"], settings.sources["warmup"], settings.max_time, settings.warmup)
        """,
    )
    for line, where in (("", "default"), ("leakcheck_max_time = 30", "pytest.ini")):
        project.write("pytest.ini", f"[pytest]\n{line}\n")
        assert f"sources: {where} default 30.0 3\n" in project.run("-s", leakcheck=False).text


RULES = """
    [pytest]
    leakcheck_scope = all
    leakcheck_rules =
        tests/vendored/**: off
        tests/net/**: resources=thread
        tests/strict/**: unclosed=fail
        tests/alone: isolate max_time=20
        tests/gone/**: off
"""
LEAKY = """
    import os
    import pytest

    KEPT = []

    def test_leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    def test_marked(): KEPT.append(os.open(__file__, os.O_RDONLY))
"""
UNCLOSED = """
    import os

    class Stream:
        def __init__(self): self.me, self.file = self, os.open(__file__, os.O_RDONLY)
        def __del__(self): os.close(self.file)

    def test_cycle(): Stream()
"""


@pytest.mark.laboratory
def test_each_folder_has_its_own_settings(project: Project) -> None:
    project.write("pytest.ini", RULES)
    for folder in ("vendored", "net", "alone", "rest"):
        project.write(f"tests/{folder}/test_{folder}.py", LEAKY)
    for arguments in ((), ("-n", "2")):
        ran = project.run(*arguments)
        red = {one["test"]: one["resource"] for one in ran.findings if one["colour"] == "red"}
        assert red == {
            "tests/vendored/test_vendored.py::test_marked": "fd",
            "tests/net/test_net.py::test_marked": "fd",
            "tests/alone/test_alone.py::test_leak": "fd",
            "tests/alone/test_alone.py::test_marked": "fd",
            "tests/rest/test_rest.py::test_leak": "fd",
            "tests/rest/test_rest.py::test_marked": "fd",
        }, ran.text
        isolated = {one["test"] for one in ran.recordings if one["environment"].get("isolated")}
        assert isolated == {f"tests/alone/test_alone.py::{name}" for name in ("test_leak", "test_marked")}
        assert "1 off by leakcheck_rules" in ran.text
        unused = "leakcheck_rules: tests/gone/**: matches no file that has tests: patterns begin at the root directory"
        assert ran.text.count(unused) == 1
        assert ran.text.count("matches no file") == 2
    assert unused not in project.run("tests/rest").text


def test_the_command_line_overrides_a_rule(project: Project) -> None:
    project.write("pytest.ini", RULES)
    project.write("tests/net/test_net.py", LEAKY)
    ran = project.run("--leakcheck-resources=fd")
    assert {one["test"]: one["verdict"] for one in ran.findings if one["resource"] == "fd"} == {
        "tests/net/test_net.py::test_leak": "leak",
        "tests/net/test_net.py::test_marked": "leak",
    }


def test_what_only_the_collector_releases_fails_where_a_rule_says_so(project: Project) -> None:
    project.write("pytest.ini", RULES)
    for folder in ("strict", "rest"):
        project.write(f"tests/{folder}/test_{folder}.py", UNCLOSED)
    ran = project.run("--leakcheck-resources=fd")
    said = {one["test"]: (one["verdict"], one["colour"]) for one in ran.findings}
    assert said == {
        "tests/strict/test_strict.py::test_cycle": ("unclosed", "red"),
        "tests/rest/test_rest.py::test_cycle": ("unclosed", "yellow"),
    }, ran.text


# As `ci/bench/inert.py`, which also bounds what they cost.
MOST_MODULES = 7


def test_what_a_plain_run_imports(project: Project) -> None:
    outcome = project.run_test(
        """
        import sys
        import pytest

        @pytest.mark.fd_budget(0)
        def test_it():
            ours = sorted(name for name in sys.modules if name.split(".")[0] in ("pytest_leakcheck", "leakcheck_incidents"))
            print("OURS", len(ours), *ours)
            heavy = {"psutil", "ctypes.util", "torch", "tensorflow", "numpy", "av", "tracemalloc"} & set(sys.modules)
            print("HEAVY", *heavy)
        """,
        "-s",
        leakcheck=False,
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        PYTEST_PLUGINS="leakcheck",
    )
    line = next(line for line in outcome.text.splitlines() if "OURS" in line)
    assert int(line.split("OURS ")[1].split()[0]) <= MOST_MODULES, line
    assert "HEAVY\n" in outcome.text


def test_no_hook_runs_per_test(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        def pytest_collection_finish(session):
            manager = session.config.pluginmanager
            per_test = [
                f"{name}:{impl.plugin_name}"
                for name, caller in vars(manager.hook).items()
                if name.startswith(("pytest_runtest", "pytest_fixture", "pytest_pyfunc", "pytest_report_teststatus"))
                for impl in caller.get_hookimpls()
                if "leakcheck" in getattr(impl.function, "__module__", "")
            ]
            print("PER TEST", *per_test)
        """,
    )
    assert "PER TEST\n" in project.run_test("def test_it(): pass", "-s", leakcheck=False).text
    assert "pytest_runtest_protocol:leakcheck-protocol" in project.run("-s").text


@pytest.mark.parametrize("leakcheck", [False, True])
def test_a_strict_project(project: Project, leakcheck: bool) -> None:
    (project.folder / "pytest.ini").unlink()
    project.write("pyproject.toml", '[tool.pytest]\nstrict = true\nfilterwarnings = ["error"]\nleakcheck_warmup = 2\n')
    outcome = project.run_test(
        """
        import os
        import pytest

        @pytest.mark.fd_budget(0)
        @pytest.mark.thread_budget(0)
        @pytest.mark.process_budget
        @pytest.mark.heap_budget("64 KiB")
        @pytest.mark.object_budget
        @pytest.mark.rss_budget("64 MiB")
        @pytest.mark.leakcheck(iterations=60)
        def test_it(): pass
        """,
        "-p",
        "no:asyncio",
        "-p",
        "no:xdist",
        leakcheck=leakcheck,
    )
    assert outcome.status == 0, outcome.text


def test_plain_steps_run_once_or_as_often_as_asked(project: Project) -> None:
    outcome = project.run_test(
        """
        def test_steps(leakcheck):
            assert list(leakcheck.steps(fd=0)) == [0]
            assert list(leakcheck.steps(5, fd=0)) == [0, 1, 2, 3, 4]
            with leakcheck.budget(fd=0):
                kept = open(__file__)
            leakcheck.gauge("queue", lambda: 1 / 0)
            kept.close()
        """,
        leakcheck=False,
    )
    assert outcome.last_line == "1 passed", outcome.text
