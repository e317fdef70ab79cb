"""A test with the cause of an earlier one is judged alike, in less time, and a leak beside it is found."""

from __future__ import annotations

from projects import Project

ALL = "--leakcheck-scope=all"
SHOP = """
    import os
    OPENED, OTHERS = [], []

    def open_log(): OPENED.append(os.open(__file__, os.O_RDONLY))
    def open_other(): OTHERS.append(os.open(__file__, os.O_RDONLY))
"""
TESTS = """
    import shop

    def test_first(): shop.open_log()
    def test_second(): shop.open_log()
    def test_other(): shop.open_other()
"""
CONFIRMED = "its cause is that of test_it.py::test_first, and was only confirmed here"


def test_only_the_first_is_searched_for(project: Project) -> None:
    project.write("shop.py", SHOP)
    ran = project.run_test(TESTS, ALL)
    first, second, other = (ran.finding(f"test_{name}") for name in ("first", "second", "other"))
    assert [CONFIRMED in one["reason"] for one in (first, second, other)] == [False, True, False]
    assert first["fingerprint"] == second["fingerprint"] != other["fingerprint"]
    assert "3 tests: 3 leak (2 causes)" in ran.one_line
    # Whose a leak is, its path tells.
    assert CONFIRMED not in project.run(ALL, "--leakcheck-blame=shop", "-k", "first or second").one_line


def test_a_known_leak_is_known_in_both_and_hides_no_other(project: Project) -> None:
    project.write("shop.py", SHOP)
    project.run_test(TESTS, ALL, "--leakcheck-update-baseline", "-k", "first or second")
    ran = project.run_test(
        TESTS.replace("test_second(): shop.open_log()", "test_second(): shop.open_log(); shop.open_other()"), ALL
    )
    colours = {name: ran.finding(f"test_{name}")["colour"] for name in ("first", "second", "other")}
    assert colours == {"first": "yellow", "second": "red", "other": "red"}
