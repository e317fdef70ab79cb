"""A hundred tests with one cause are one block and one line, in less than a screen and a half; pytest counts them all."""

from __future__ import annotations

import re

import pytest

from projects import Outcome, Project

# What an earlier test has left is closed first, so that a hundred tests do not hold thousands of descriptors.
LIBRARY = """
    OPENED, LAST = [], []

    def read(path, case):
        if LAST != [case]:
            LAST[:] = [case]
            for file in OPENED: file.close()
            OPENED.clear()
        OPENED.append(open(path))
"""
SUITE = """
    import pytest
    from library import read

    @pytest.mark.parametrize("case", range(%d))
    @pytest.mark.fd_budget(0)
    def test_it(case):
        read(__file__, case)
        if case %% 2: read(__file__, case)
"""
CONFTEST = """
    from pytest_leakcheck.runner.settling import Settling

    # What is held for good is waited for in vain: a shorter time says the same.
    Settling.seconds = Settling.seconds_alone = 0.002

    def pytest_terminal_summary(terminalreporter):
        print("failures seen by others:", len(terminalreporter.stats["failed"]))
"""


def lines(ran: Outcome) -> int:
    return len(ran.text.splitlines())


@pytest.mark.laboratory
@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["here", "in workers"])
def test_a_hundred_leaks_with_one_cause(project: Project, arguments: tuple[str, ...]) -> None:
    project.write("library.py", LIBRARY)
    project.write("test_it.py", SUITE % 100)
    project.write("conftest.py", CONFTEST)
    ran = project.run(*arguments)
    assert ran.status == 1
    assert ran.last_line == "100 failed"
    assert len(ran.findings) == 100
    assert lines(ran) <= 60, ran.text
    assert ran.text.count("held by      library.OPENED") == 1
    (first,) = re.findall(r"finding +([0-9a-f]{6})-fd-library-OPENED", ran.text)
    told = re.findall(
        rf"\nLEAK same as {first} \((test_it\.py::test_it\[\d+\])\): fd \+1\.0 to \+2\.0/iter\n", ran.text
    )
    assert len(told) == 1
    assert "\n  -v shows all 99\n" in ran.text
    assert re.search(r"\n_+ test_it\[\d+\] and 98 more _+\n", ran.text)
    short = ran.text.partition("short test summary info")[2].splitlines()[1:-1]
    assert len(short) == 2
    assert short[0].startswith(f"LEAK {told[0]} - LeakError: fd +")
    assert re.match(r"LEAK test_it\.py::test_it\[\d+\] - and 98 more: same cause as test_it", short[1])
    assert "failures seen by others: 100\n" in ran.text


def test_one_other_test_has_its_own_line(project: Project) -> None:
    project.write("library.py", LIBRARY)
    ran = project.run_test(SUITE % 2)
    assert re.search(
        r"\n_+ test_it\[1\] _+\nLEAK same as \S+ \(test_it\.py::test_it\[0\]\): fd \+2\.0/iter\n=+", ran.text
    )
    assert "\nLEAK test_it.py::test_it[1] - LeakError: fd +2.0/iter" in ran.text


@pytest.mark.laboratory
def test_verbose_folds_none(project: Project) -> None:
    project.write("library.py", LIBRARY)
    ran = project.run_test(SUITE % 4, "-v")
    assert ran.text.count("held by      library.OPENED") == 4
    assert len(re.findall(r"(?m)^LEAK test_it\.py::test_it\[\d\] - ", ran.text)) == 4
    # Other styles fold, too.
    for style in ("line", "no", "short"):
        ran = project.run(f"--tb={style}")
        assert ran.last_line == "4 failed"
        assert "LEAK test_it.py::test_it[1] - and 2 more: same cause as test_it.py::test_it[0]" in ran.text
    # A failure by itself is not folded.
    project.write(
        "test_other.py", "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_own(n): assert 0\n"
    )
    ran = project.run()
    assert ran.text.count("FAILED test_other.py::test_own") == 3
    assert ran.last_line == "7 failed"
