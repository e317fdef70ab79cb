"""The report as a user sees it: whole texts, in 80 columns, in UTF-8 and in ASCII."""

from __future__ import annotations

import re
import textwrap

import pytest

from projects import Project
from pytest_leakcheck.report import GUIDE
from variants import variants

SUITE = """
    import itertools, os
    import pytest
    KEPT = []
    runs = itertools.count()
    def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))

    @pytest.fixture(scope="module", autouse=True)
    def clean_up():
        yield
        for file in KEPT: os.close(file)

    @pytest.mark.fd_budget(0, reason="a worker lives for a week")
    def test_leak(): leak()

    @pytest.mark.fd_budget(0)
    def test_clean(): pass

    @pytest.mark.fd_budget(1)
    def test_two_stay():
        if next(runs) < 10: leak()
"""
# Figures that differ by machine or run: descriptors at the start, the limit, times, folders.
UNSTEADY = (
    (r"\d+ (→|>) \d+ +", "A \\1 B "),
    (r"limit of [\d,]+ descriptors \(ulimit -n\)\s+after\s+(≈|~)\s+[\d,]+", "limit of LIMIT descriptors, after \\1 N"),
    (r"repeating took \d+\.\d+ s", "repeating took T"),
    (r"(× |x )(…|~)?(/[^ ]*)?/test_it\.py", "\\1FILE"),
    (r"list of \d+", "list of N"),
    (r"\[\d+\] (→|>) int", "[M] \\1 int"),
    (r"(?m)^leakcheck: wrote .*\n", ""),
)


def steady(text: str) -> str:
    for pattern, replacement in UNSTEADY:
        text = re.sub(pattern, replacement, text)
    return text


def part(text: str, begin: str, end: str) -> str:
    return text[text.index(begin) : text.index(end, text.index(begin) + 1)]


def expect(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a session over `SUITE` prints."""
    return Project(tmp_path_factory.mktemp("suite")).run_test(SUITE).text


def test_the_block(text: str) -> None:
    block = part(text, "fd +1.0/iter", "_______")
    assert steady(block) == expect(
        """
        fd +1.0/iter — test_it.py:5 os.open() (17 iterations)

          leak         +1.0/iter sustained over 17 iterations
          fd           A → B ▁▁▂▂▃▃▄▄▅▅▆▆▇▇██  +1.0/iter  exact
          remaining    17 × FILE from 17 iterations
          opened       test_it.py:5 in leak()
                         def leak(): KEPT.append(os.open(__file__, os.O_RDONLY))
                       called from test_it.py:13 in test_leak()
          held by      test_it.KEPT
                       module test_it
                       └ KEPT → list of N   <- grows by 1.0/iter
                         └ [M] → int, 28 B each
          means        this process reaches its limit of LIMIT descriptors, after ≈ N iterations
          budget       0: a worker lives for a week
          finding      e2068f-fd-test_it-KEPT
          next         pytest --leakcheck "test_it.py::test_leak"
        """
    )
    ours = text[text.index("= FAILURES =") :].splitlines()
    assert [line for line in ours if len(line) > 80 and "wrote" not in line] == []


def test_in_ascii_the_columns_are_the_same(text: str, project: Project) -> None:
    in_ascii = project.run_test(SUITE, PYTHONIOENCODING="ascii").text
    assert in_ascii.isascii()
    assert "\\u" not in in_ascii
    signs = str.maketrans("×—→≈…·└▁▂▃▄▅▆▇█", "x->~~|`_.:-=+*#")
    end = "= short test summary"
    assert steady(part(in_ascii, "fd +1.0/iter", end)) == steady(part(text, "fd +1.0/iter", end)).translate(signs)


def test_the_summary(text: str) -> None:
    summary = steady(part(text, "= leakcheck =", "= short test summary"))
    lines = [line for line in summary.splitlines() if not line.startswith("=")]
    assert lines == [
        "3 tests: 1 ok · 1 leak · 1 over budget · repeating took T",
        "e2068f  fd +1.0/iter — test_it.py:5 os.open() (17 iterations)",
        "  test_it.py::test_leak",
        "8f15f4  fd +7 — 7 × test_it.py (budget 1)",
        "  test_it.py::test_two_stay",
        f"  how to fix: {GUIDE}",
    ]


def test_the_short_summary_carries_the_first_line(project: Project) -> None:
    project.write("test_it.py", SUITE)
    for style in ("line", "no"):
        text = project.run(f"--tb={style}").text
        assert "LEAK test_it.py::test_leak - LeakError: fd +1.0/iter — test_it.py:5 os.open()" in text
    assert "test_it.py L.O" in text


def test_verbose_names_what_passed_and_its_floor(project: Project) -> None:
    text = project.run_test(SUITE, "-v").text
    assert "test_it.py::test_leak LEAK" in text
    assert "  sensitivity (each ok test would have caught): fd 1 in 2 iter\n" in text
    told = project.run("--leakcheck-summary=all").text
    assert "ok  test_it.py::test_clean\n  would have caught fd 1 in 2 iter\n" in told


def test_quiet_and_no_summary(project: Project) -> None:
    quiet = project.run_test(SUITE, "-q").text
    assert "= leakcheck =" not in quiet
    assert "3 tests: 1 ok · 1 leak · 1 over budget" in quiet
    assert "e2068f  fd +1.0/iter" in quiet
    bare = project.run("--no-summary").text
    assert "leakcheck: 3 tests: 1 ok · 1 leak · 1 over budget" in bare
    assert "e2068f  fd" not in bare
    none = project.run("--leakcheck-summary=none").text
    assert "3 tests: " in none
    assert "e2068f  fd" not in none


def test_nothing_measured_is_not_silent(project: Project) -> None:
    text = project.run_test("def test_it(): pass\ndef test_other(): pass", "--leakcheck", leakcheck=False).text
    line = "\nleakcheck: 0 of 2 tests carry a budget, nothing was judged: mark tests, or use --leakcheck-scope=all\n"
    assert line in text
    assert "\n2 tests: 2 not judged (2 without a mark)\n" in text
    quiet = project.run("-q", "--leakcheck-fail-on=nothing")
    assert line in quiet.text
    assert (quiet.status, project.run("-q").status) == (1, 0)
    assert "leakcheck:" not in project.run(leakcheck=False).text
    # A test that fails has a reason of its own.
    assert "0 of" not in project.run_test("import pytest\n@pytest.mark.leakcheck\ndef test_it(): assert 0").text


def test_the_help_states_each_default(project: Project) -> None:
    text = project.run("--help", leakcheck=False, COLUMNS="80").one_line
    assert "0 stops as soon as the verdict is known (default: 0) " in text
    assert "Example: --leakcheck-failures=os.open,shop.client (default: none) " in text
    assert "but fail no test for them (default: true) " in text


LIBRARY = """
    OPENED = []

    def read(path):
        OPENED.append(open(path))
"""
SHARED_CAUSE = """
    import pytest
    from library import read

    pytestmark = pytest.mark.fd_budget(0)

    def test_first(): read(__file__)

    def test_second(): read(__file__)

    def test_third():
        read(__file__)
        read(__file__)
"""


@pytest.mark.parametrize("arguments", variants([()], [("-n", "1")]), ids=["here", "in a worker"])
def test_tests_with_one_cause_share_a_block_and_a_line(text: str, project: Project, arguments: tuple[str, ...]) -> None:
    project.write("library.py", LIBRARY)
    ran = project.run_test(SHARED_CAUSE, *arguments)
    assert ran.last_line == "3 failed"
    assert ran.text.count("held by      library.OPENED") == 1
    assert "\nLEAK same as e62108 (test_it.py::test_first): fd +1.0 to +2.0/iter\n  -v shows" in ran.text
    assert "\n3 tests: 3 leak (1 cause) · " in ran.text
    assert "\n  test_it.py::test_first and 2 more (+1.0 to +2.0/iter)\n" in ran.text
    assert project.run("-v", *arguments).text.count("held by      library.OPENED") == 3
    # Other readers get each finding whole.
    project.run("--junitxml=junit.xml", *arguments)
    assert (project.folder / "junit.xml").read_text(encoding="utf-8").count("held by      library.OPENED") == 3
    # Two leaks of one test file are two causes.
    assert "same as" not in text


def test_a_debugger_is_said_to_leave_no_verdict(project: Project) -> None:
    text = project.run_test(SUITE, "--pdb").text
    assert "\nleakcheck: no verdicts: tests run once with --pdb\n" in text
    assert "\nleakcheck: 3 not measured: run once with --pdb\n" in text


def test_each_verdict_has_its_letter_and_word(project: Project) -> None:
    project.copy("program_with_each_verdict.py")
    strict = ("--leakcheck-fail-on=leak,over_budget,unclosed,inconclusive", "--leakcheck-missing=fail")
    outcome = project.run(*strict)
    words = ["LEAK", "OVER BUDGET", "UNCLOSED", "INCONCLUSIVE", "UNAVAILABLE", "FAILED", "LEAK"]
    assert re.findall(r"(?m)^([A-Z][A-Z ]+) test_it\.py::", outcome.text) == words
    assert "test_it.py LOUIAFL" in outcome.text
    assert outcome.last_line == "7 failed"
    verbose = project.run("-v", "-n", "1", *strict)
    assert (
        re.findall(
            r"(?m)^\[gw0\] \[ *\d+%\] ([A-Z][A-Z ]+?)(?: \([\d,]+ iterations?, [\d.]+ s\))? test_it\.py::", verbose.text
        )
        == words
    )


def test_an_option_without_leakcheck_is_not_silent(project: Project) -> None:
    project.write("test_it.py", "def test_it(): pass")
    refused = project.run("--leakcheck-iterations=5", "--leakcheck-json=x.json", leakcheck=False)
    assert refused.status == 4
    assert (
        "--leakcheck-iterations, --leakcheck-json (command line): no effect without --leakcheck: add it" in refused.text
    )
    assert project.run("--leakcheck-iterations=5").status == 0
    # Plain runs share what stands in the configuration.
    project.write(
        "pytest.ini", "[pytest]\naddopts = --leakcheck-iterations=5 -p no:hypothesispytest -p no:anyio -p no:asyncio"
    )
    assert project.run(leakcheck=False).last_line == "1 passed"


@pytest.mark.parametrize("arguments", variants([()], [("-n", "1")]), ids=["here", "in a worker"])
def test_in_colour_what_matters_stands_out(project: Project, arguments: tuple[str, ...]) -> None:
    project.write("test_it.py", SUITE)
    red, dim, plain = "\x1b[31m\x1b[1m", "\x1b[2m", "\x1b[0m"
    text = project.run("--color=yes", "--junit-xml=junit.xml", *arguments).text
    assert f"{red}fd +1.0/iter — test_it.py:5 os.open() (17 iterations){plain}" in text
    assert f"{red}  leak         {plain}{red}+1.0/iter sustained over 17 iterations{plain}" in text
    assert f"{dim}  held by      {plain}test_it.KEPT" in text
    assert f"{red}   <- grows by 1.0/iter{plain}" in text
    assert "\x1b[31me2068f  fd +1.0/iter" in text
    # Without its colours it is the same text.
    assert re.sub(r"\x1b\[[\d;]*m", "", part(text, f"{red}fd +1.0", "_______")).startswith(
        "fd +1.0/iter — test_it.py:5"
    )
    assert "\x1b" not in project.run("--color=no", *arguments).text
    # Other readers get no colour.
    junit = (project.folder / "junit.xml").read_text(encoding="utf-8")
    assert "&lt;- grows by 1.0/iter" in junit
    assert "[31m" not in junit


def test_a_wide_terminal_has_room_for_all_words(project: Project) -> None:
    """And a narrow one for the place, whatever must go."""
    long = "opens_a_file_whose_name_is_long_and_keeps_it_open_for_ever"
    project.write(
        "test_it.py",
        f"""
        import os
        import pytest
        KEPT = []
        def {long}(): KEPT.append(os.open(__file__, os.O_RDONLY))

        @pytest.mark.fd_budget(per_iteration=0.25, reason="as others do")
        def test_leak(): {long}()
        """,
    )
    whole = "fd +1.0/iter — test_it.py:4 os.open() (17 iterations, budget +0.25/iter)"
    assert whole in project.run(COLUMNS="100").text
    assert f"LeakError: {whole}" in project.run("-rf", "--tb=no", COLUMNS="160").text


def test_durations_are_those_of_all_repetitions(project: Project) -> None:
    outcome = project.run_test(
        """
        import time
        import pytest

        @pytest.mark.fd_budget(0)
        def test_repeated():
            time.sleep(0.02)

        def test_loop(leakcheck):
            for _ in leakcheck.steps(fd=0):
                time.sleep(0.02)
        """,
        "--durations=2",
    )
    told = re.findall(r"^([\d.]+)s call +test_it\.py::(test_\w+)$", outcome.text, re.MULTILINE)
    took = {test: float(seconds) for seconds, test in told}
    for recording in outcome.recordings:
        # What is repeated runs once more in the end, and that is the run that is reported.
        test = recording["test"].rpartition("::")[2]
        assert recording["seconds"] - 0.01 <= took[test] < 1.5 * recording["seconds"], outcome.text
    assert len(took) == len(outcome.recordings) == 2
