"""``peak=`` of a budget: the highest value of a resource in one run of the test, in a separate process."""

from __future__ import annotations

import re
import sys

import pytest

from projects import Project
from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.judge.judge_scaling import judge_peak
from pytest_leakcheck.model.recording import Point, Recording
from variants import variants

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")
MIB = 1 << 20
PEAKS = """
    import os, unittest
    import pytest

    @pytest.mark.fd_budget(0, peak=3)
    def test_files(request):
        files = [os.open(os.devnull, os.O_RDONLY) for _ in range(9 if HIGH else 3)]  # of test_files
        for file in files:
            os.close(file)

    @pytest.mark.rss_budget("64 MiB", peak="12 MiB")
    def test_memory():
        parts = []
        for _ in range(24 if HIGH else 8):
            parts.append(bytearray(b"x") * (1 << 20))

    class TestCase(unittest.TestCase):
        @pytest.mark.fd_budget(0, peak=1)
        def test_method(self):
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(2 if HIGH else 1)]
            for file in files:
                os.close(file)
"""


@pytest.mark.parametrize("isolate", variants([()], [("--leakcheck-isolate",)]))
def test_a_peak_that_is_exceeded_is_red_with_its_line(project: Project, isolate: tuple[str, ...]) -> None:
    body = PEAKS.replace("\n    ", "\n")
    path = project.write("test_it.py", f"HIGH = True\n{body}")
    high = project.run(*isolate)
    assert high.last_line == "3 failed", high.text
    found = [one for one in high.findings if one["peak"]]
    assert [(one["resource"], one["verdict"]) for one in found] == [
        ("fd", "over_budget"),
        ("rss", "over_budget"),
        ("fd", "over_budget"),
    ]
    files, memory, method = found
    assert (files["level"], method["level"]) == (9, 2)
    assert 22 * MIB < memory["level"] < 26 * MIB
    line = next(at for at, text in enumerate(path.read_text().splitlines(), 1) if text.endswith("# of test_files"))
    assert files["site"]["line"] == line
    assert memory["owner"]["name"] == "test_memory() local 'parts'"
    # What it retains is in order, and that is told apart.
    assert high.text.count("  also ok      fd\n") == 2
    assert re.search(r"^rss peak \+2\d\.\d MiB — ", high.text, re.MULTILINE)
    low = project.run_test(f"HIGH = False\n{body}", *isolate)
    assert low.last_line == "3 passed", low.text
    assert {one["verdict"] for one in low.findings} == {"ok"}


def test_the_call_at_which_a_peak_is_read_is_not_said_to_create_it(project: Project) -> None:
    outcome = project.run_test("""
        import time
        import pytest

        @pytest.mark.heap_budget("64 MiB", peak="1 MiB")
        def test_memory():
            data = b"x" * (5 << 20)
            time.sleep(0)
        """)
    assert "heap peak +5.0 MiB" in outcome.text
    # Only a call is read, and the line before makes none.
    assert "  highest at   test_it.py:7 in test_memory()" in outcome.text
    assert "  allocated" not in outcome.text


def test_a_leak_is_said_first_and_a_peak_not_at_all(project: Project) -> None:
    found = project.run_test("""
        import os, pytest
        KEPT = []
        @pytest.mark.fd_budget(0, peak=0)
        def test_it():
            KEPT.append(os.open(os.devnull, os.O_RDONLY))
        """).findings
    assert [(one["verdict"], one["peak"]) for one in found] == [("leak", False)]


def test_a_process_that_dies_leaves_the_peak_open(project: Project) -> None:
    ran = project.run_test(
        """
        import os, pytest
        @pytest.mark.fd_budget(0, peak=3)
        def test_it(pytestconfig):
            if pytestconfig.getoption("--leakcheck-task", None):
                os.kill(os.getpid(), 9)
        """,
        CI="1",
    )
    assert ran.last_line == "1 failed"
    assert "no peak: the process that measured it died of SIGKILL (signal 9)" in ran.one_line


@pytest.mark.parametrize(
    ("budget", "peak", "outcome"),
    [
        (Budget("fd", peak=3), 3, "ok"),
        (Budget("fd", peak=3), 4, "over_budget"),
        (Budget("rss", peak=MIB), MIB, "ok"),
        (Budget("rss", peak=MIB), MIB + (1 << 18), "inconclusive"),
        (Budget("rss", peak=MIB), MIB + (1 << 18) + 1, "over_budget"),
    ],
)
def test_a_peak_and_what_is_allowed(budget: Budget, peak: int, outcome: str) -> None:
    point = Point(0, (Recording("t", (), peaks={budget.resource: peak}),))
    verdict = judge_peak(budget, point, "")
    assert (verdict.outcome, verdict.level, verdict.peak) == (outcome, peak, True)
