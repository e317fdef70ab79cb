"""Without ``--leakcheck``: nothing is imported that is not needed, no hook runs per test, and strict projects pass."""

from __future__ import annotations

import pytest

from projects import Project

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
