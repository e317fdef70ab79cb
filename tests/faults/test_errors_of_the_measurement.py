"""An error of the measurement costs the verdict on one test: the session goes on, and the tests around it are judged."""

from __future__ import annotations

import pytest

from projects import Outcome, Project
from pytest_leakcheck.model.resources import RESOURCES
from variants import variants

BEFORE = """
    import os
    import shutil
    import tempfile
    import time

    import pytest

    KEPT = []

    def refuse(*_, **__):
        raise RuntimeError("refused")

    @pytest.mark.fd_budget(0)
    def test_leaky_before():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    def test_clean_before():
        os.close(os.open(__file__, os.O_RDONLY))
"""
AFTER = """
    @pytest.mark.fd_budget(0)
    def test_leaky_after():
        KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.mark.fd_budget(0)
    def test_clean_after():
        os.close(os.open(__file__, os.O_RDONLY))
"""
AROUND = {"test_leaky_before": "leak", "test_clean_before": "ok", "test_leaky_after": "leak", "test_clean_after": "ok"}


def around(ran: Outcome) -> dict[str, str]:
    """The verdicts on the four tests."""
    return {name: verdict for (name, _resource), verdict in ran.verdicts.items() if name in AROUND}


def faulty(project: Project, tests: str) -> Outcome:
    ran = project.run_test(BEFORE + tests + AFTER)
    assert "INTERNALERROR" not in ran.text
    assert around(ran) == AROUND
    return ran


REPLACES = """
    PREAD = os.pread

    @pytest.mark.leakcheck(isolate={isolate})
    def test_fault():
        os.pread = refuse

    def test_put_back():
        os.pread = PREAD
"""


@pytest.mark.parametrize("isolate", variants([False], [True]))
def test_a_function_that_the_measurement_uses_is_replaced(project: Project, isolate: bool) -> None:
    ran = faulty(project, REPLACES.format(isolate=isolate))
    (found,) = (one for one in ran.findings if one["test"].endswith("test_fault"))
    assert (found["verdict"], found["colour"]) == ("inconclusive", "yellow")
    assert found["reason"].startswith("the measurement failed: RuntimeError: refused (probes/own_descriptors.py:")
    assert ran.last_line == "2 failed, 4 passed"


def test_descriptors_that_the_plugin_opened_are_closed(project: Project) -> None:
    ran = faulty(
        project,
        """
    @pytest.mark.leakcheck
    def test_fault():
        os.closerange(1000, 65536)

    @pytest.mark.leakcheck(isolate=True)
    def test_fault_alone():
        os.closerange(1000, 65536)
    """,
    )
    assert ran.last_line == "2 failed, 4 passed"
    odd = {
        (one["resource"], one["verdict"]): one["reason"]
        for one in ran.findings
        if "test_fault" in one["test"] and one["verdict"] != "ok"
    }
    # Memory may stay undecided on a busy machine, by its own movement. What is counted may not, nor may anything be lost.
    assert {found[1] for found in odd} <= {"inconclusive"}, odd
    of_others = {found for found, why in odd.items() if "of unknown origin" in why and found[0] in ("shm", "disk")}
    lost = {
        found: why
        for found, why in odd.items()
        if found not in of_others and (RESOURCES[found[0]].scarce or "fail" in why or "descriptor" in why)
    }
    assert lost == {}


OVERWRITES = """
    NUMBERS = []

    @pytest.mark.fd_budget(0)
    def test_fault():
        NUMBERS.append({leak})
        if len(NUMBERS) == 5:
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 500:
                    os.dup2(2, int(name))
"""


@pytest.mark.parametrize(("leak", "verdict"), [("1", "inconclusive"), ("os.dup(2)", "leak")])
def test_other_files_over_descriptors_of_the_plugin_are_no_leak_of_the_test(
    project: Project, leak: str, verdict: str
) -> None:
    ran = faulty(project, OVERWRITES.format(leak=leak))
    found = ran.finding("test_fault")
    assert found["verdict"] == verdict
    assert ("over descriptors of the plugin" in found["reason"]) is (verdict == "inconclusive")


@pytest.mark.laboratory
def test_the_folder_for_temporary_files_is_gone(project: Project) -> None:
    folder = project.folder / "temporary"
    folder.mkdir()
    ran = project.run_test(
        BEFORE
        + """
    def test_removes():
        shutil.rmtree(tempfile.gettempdir())

    @pytest.mark.fd_budget(0)
    @pytest.mark.leakcheck(isolate=True)
    def test_isolated():
        pass

    @pytest.mark.rss_budget(peak="1 MiB")
    def test_peak():
        pass

    @pytest.mark.scaling_budget("n", [1, 2, 4], rss="O(1)")
    def test_sizes(n):
        pass
    """
        + AFTER,
        "-rs",
        TMPDIR=str(folder),
    )
    assert "INTERNALERROR" not in ran.text
    assert around(ran) == AROUND
    assert ran.verdicts["test_isolated", "fd"] == "inconclusive"
    assert "the measurement failed: FileNotFoundError: " in ran.finding("test_isolated")["reason"]
    # Peaks that were not measured must not pass.
    assert ran.verdicts["test_sizes", "rss"] == "unavailable"
    assert "unavailable" in {one["verdict"] for one in ran.findings if one["test"].endswith("test_peak")}
    assert ran.last_line == "2 failed, 4 passed, 2 skipped"


@pytest.mark.laboratory
def test_an_internal_error_of_an_isolated_process_is_shown(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        class Broken:
            def pytest_runtest_logstart(self):
                raise RuntimeError("a plugin of the project failed")

        def pytest_configure(config):
            if hasattr(config.option, "leakcheck_task"):
                config.pluginmanager.register(Broken())
        """,
    )
    ran = faulty(
        project,
        """
    @pytest.mark.fd_budget(0)
    @pytest.mark.leakcheck(isolate=True)
    def test_fault():
        pass
    """,
    )
    assert "a plugin of the project failed" in ran.text


FULL = """
    import resource

    NUMBERS = []

    @pytest.mark.fd_budget(0)
    @pytest.mark.leakcheck(isolate=True)
    def test_fault():
        NUMBERS.append(1)
        if len(NUMBERS) == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""


def test_an_isolated_process_that_cannot_write_what_it_found_is_not_red(project: Project) -> None:
    ran = faulty(project, FULL)
    found = ran.finding("test_fault")
    assert (found["verdict"], found["colour"]) == ("inconclusive", "yellow")
    assert "cannot write what it found: File too large" in found["reason"]
    assert ran.last_line == "2 failed, 3 passed"


def test_a_finding_that_cannot_be_taken_is_stated(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import pytest_leakcheck.plugin.session_report as report

        TAKE, DONE = report.findings_of, []

        def fail_once(text, *nodeid):
            DONE.append(text)
            if len(DONE) == 1:
                raise RuntimeError("refused")
            return TAKE(text, *nodeid)

        report.findings_of = fail_once
        """,
    )
    ran = project.run_test(BEFORE + AFTER)
    assert ran.verdicts.keys() == {(name, "fd") for name in AROUND if name != "test_leaky_before"}
    assert "leakcheck: the finding on test_it.py::test_leaky_before is lost: RuntimeError: refused" in ran.text
    assert ran.status == pytest.ExitCode.INTERNAL_ERROR
