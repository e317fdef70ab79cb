"""A suite without marks: ``--leakcheck-scope=all`` judges each test, and changes the outcome of red ones alone."""

from __future__ import annotations

import re

import pytest

from projects import HEAD, Project

LINE = (
    "14 tests: 4 ok · 3 leak (2 causes) · 1 not repeatable · 6 not judged "
    "(3 fail or skip by themselves, 1 benchmarks, 1 opted out, 1 xfail(run=False)) · repeating took"
)


def outcomes(text: str) -> dict[str, str]:
    """The outcome of each test by ``-rA``; a line on it may follow."""
    found = re.findall(r"(?m)^([A-Z]+) (?:\[\d+\] )?test_it\.py(?:::(\w+)|:\d+: )", text)
    return {name: word for word, name in found if name}


def test_all_tests_are_judged_and_accounted_for(project: Project) -> None:
    project.copy("program_without_marks.py")
    # Other programs change what the folders shared with them hold, and a test that sees that is looked at for longer.
    for arguments in ((), ("-n", "2", "--leakcheck-resources=fd,object")):
        ran = project.run("--leakcheck-scope=all", *arguments)
        assert LINE in re.sub(r"\n +", " ", ran.text), ran.text
        red = {one["test"].rpartition("::")[2]: one["resource"] for one in ran.findings if one["colour"] == "red"}
        # Two tests have one cause; which of them comes first, workers do not say.
        assert re.search(
            r'  next         pytest --leakcheck-scope=all "test_it.py::test_(leak|every_second)"\n', ran.text
        )
        assert red == {"test_leak": "fd", "test_every_second": "fd", "test_memory": "object"}
    taken = {one["test"].rpartition("::")[2]: one["series"][0]["readings"] for one in ran.recordings}
    # Two iterations suffice where nothing moves. The first test of a file sets up the file, and a dict is filled: then six
    # do. A mark asks for all.
    names = "test_at_rest", "test_clean", "test_memo", "test_marked"
    assert [len(taken[name]) - 1 for name in names] == [2, 6, 6, 13]


def test_a_conftest_opts_out_what_a_mark_asks_for(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import pytest
        def pytest_collection_modifyitems(items):
            for item in items:
                if "late" in item.name:
                    item.add_marker(pytest.mark.leakcheck(False, reason="known"), append=False)
        """,
    )
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.mark.fd_budget
    def test_late(): leak()

    @pytest.mark.fd_budget
    def test_late_with_fixture(leakcheck): leak()

    @pytest.mark.scaling_budget("mib", [1, 2, 4, 8], rss="O(1)")
    def test_late_size(mib): assert mib == 1

    @pytest.mark.fd_budget
    def test_judged(): leak()
    """,
    )
    outcome = project.run()
    assert outcome.last_line == "1 failed, 3 passed", outcome.text
    assert outcome.verdicts == {("test_judged", "fd"): "leak"}


def test_it_needs_no_other_option_and_nothing_typed_is_without_effect(project: Project) -> None:
    project.write("test_it.py", "KEPT = []\ndef test_it(): KEPT.append(open(__file__))")
    assert project.run("--leakcheck-scope=all", leakcheck=False).last_line == "1 failed, 1 passed"
    project.write(
        "pytest.ini", "[pytest]\nleakcheck_scope = all\naddopts = -p no:hypothesispytest -p no:anyio -p no:asyncio"
    )
    assert project.run(leakcheck=False).last_line == "1 passed"
    assert project.run().last_line == "1 failed, 1 passed"


def test_if_nothing_may_fail_each_test_has_the_outcome_of_a_plain_run(project: Project) -> None:
    path = project.copy("program_without_marks.py")
    path.write_text(path.read_text() + "@pytest.mark.arrow_budget(0)\ndef test_no_such_counter(): pass\n")
    plain = outcomes(project.run("-rA", "--tb=no", leakcheck=False).text)
    judged = project.run(
        "-rA", "--tb=no", "--leakcheck-scope=all", "--leakcheck-fail-on=none", "--leakcheck-missing=fail"
    )
    assert outcomes(judged.text) == plain
    assert set(plain.values()) == {"PASSED", "FAILED", "SKIPPED", "XFAIL"} - ({"SKIPPED"} - set(plain.values()))
    assert {one["colour"] for one in judged.findings} == {"green", "yellow"}
    assert "3 leak" in judged.text


@pytest.mark.laboratory
def test_memory_of_a_slow_test_is_not_judged_and_said_so(project: Project) -> None:
    project.write("test_it.py", "import time\nKEPT = []\ndef test_slow():\n    time.sleep(0.05)\n    KEPT.append([])\n")
    ran = project.run("--leakcheck-scope=all", "--leakcheck-max-time=2")
    assert ran.last_line == "1 passed"
    assert "\n1 test: 1 ok · " in ran.text
    assert "memory not judged in 1 of 1 tests, for lack of time: --leakcheck-max-time; it" in ran.text
    assert "\n  rose in test_it.py::test_slow\n" in ran.text
    # A leak of what is counted is still one.
    project.write(
        "test_it.py",
        "import time\nKEPT = []\ndef test_slow():\n    time.sleep(0.05)\n    KEPT.append(open(__file__))\n",
    )
    assert project.run("--leakcheck-scope=all", "--leakcheck-max-time=5").last_line == "1 failed, 1 passed"
    # A mark asks for the verdict, so the report says that it is missing.
    project.write(
        "test_it.py",
        "import time, pytest\nKEPT = []\n@pytest.mark.leakcheck\ndef test_slow():\n    time.sleep(0.2)\n    KEPT.append([])\n",
    )
    assert "1 inconclusive" in project.run("--leakcheck-max-time=2").text


def test_a_full_cache_is_known_from_earlier_tests_and_hides_no_leak(project: Project) -> None:
    outcome = project.run_test(
        """
        import functools
        import itertools

        KEPT, NUMBERS = [], itertools.count(1000)

        @functools.lru_cache(64)
        def page(number):
            return {"number": [number]}

        def test_first(): page(next(NUMBERS))

        def test_second(): page(next(NUMBERS))

        def test_leaks():
            page(next(NUMBERS))
            KEPT.append([])

        def test_keeps_an_entry(): KEPT.append(page(next(NUMBERS)))

        def test_keeps_each_second(runs=[]):
            runs.append(page(next(NUMBERS)) if len(runs) % 2 else 0)
        """,
        "--leakcheck-scope=all",
        # Resident memory may rise beside load, and then four iterations decide nothing.
        "--leakcheck-resources=object",
    )
    first, second = (outcome.finding(name, "object") for name in ("test_first", "test_second"))
    assert (first["verdict"], second["verdict"]) == ("ok", "ok")
    assert first["iterations"] > 50, "the cache was not known yet"
    assert second["iterations"] == 4
    assert (second["reason"], second["floor"]) == ("new entries of bounded caches hold 4 of them", 0.5)
    slopes = {name: outcome.finding(name, "object")["slope"] for name in ("test_leaks", "test_keeps_an_entry")}
    # The cache may gain a last entry meanwhile.
    assert slopes == {"test_leaks": pytest.approx(1, abs=0.2), "test_keeps_an_entry": 2}
    assert outcome.finding("test_keeps_each_second", "object")["verdict"] == "leak"
