"""A session judges a part of its tests: one case, a share, or what its time suffices for. The others run once."""

from __future__ import annotations

import re

import pytest

from projects import Outcome, Project
from variants import variants

ALL = "--leakcheck-scope=all"
SUITE = """
    import pytest

    @pytest.mark.parametrize("case", range(5))
    def test_cases(case): pass

    @pytest.mark.parametrize("case", range(3))
    @pytest.mark.fd_budget(0)
    def test_marked(case): pass

    def test_plain(): pass

    def test_loop(leakcheck):
        for _ in leakcheck.steps(20, fd=0): pass
"""
SLOW = """
    import time
    import pytest

    RUNS = [0] * 12

    @pytest.mark.parametrize("number", range(12))
    def test_it(number):
        RUNS[number] += 1
        time.sleep(0.03)
"""


def judged(ran: Outcome) -> set[str]:
    return {one["test"].rpartition("::")[2] for one in ran.findings}


@pytest.mark.parametrize("arguments", [(), ("-n", "2")])
def test_one_case_stands_for_a_function_without_a_mark(project: Project, arguments: tuple[str, ...]) -> None:
    ran = project.run_test(SUITE, ALL, "--leakcheck-cases=one", *arguments)
    names = sorted(name.partition("[")[0] for name in judged(ran))
    assert names == ["test_cases", "test_loop", "test_marked", "test_marked", "test_marked", "test_plain"]
    assert "10 tests: 6 ok · 4 not judged (4 other cases)" in ran.one_line
    assert judged(project.run(ALL, "--leakcheck-cases=one", "-k", "test_cases")) == {
        name for name in judged(ran) if name.startswith("test_cases")
    }


def test_as_many_turns_as_parts_judge_each_test_once(project: Project) -> None:
    project.write("test_it.py", SUITE)
    found: list[str] = []
    for turn in range(3):
        ran = project.run(ALL, f"--leakcheck-sample=1/3@{turn}", *(("-n", "2") if turn else ()))
        assert ran.last_line == "10 passed"
        rest = 10 - len(judged(ran))
        assert f"10 tests: {10 - rest} ok · {rest} not judged ({rest} not in this sample)" in ran.one_line
        found += judged(ran)
    assert sorted(found) == sorted({*found})
    assert len(found) == 10


@pytest.mark.laboratory
@pytest.mark.parametrize("workers", variants([1], [2]))
def test_a_session_has_a_time_and_the_next_goes_on_with_the_rest(project: Project, workers: int) -> None:
    project.write("test_it.py", SLOW)
    arguments = ("-n", str(workers)) if workers > 1 else ()
    seen: list[set[str]] = []
    for _session in range(6):
        ran = project.run(ALL, "--leakcheck-session-time=0.6s", *arguments, cache=True)
        assert ran.last_line == "12 passed"
        names = judged(ran)
        assert names
        rest = 12 - len(names)
        # No worker begins another one once its time is spent.
        before_the_last = sorted(one["seconds"] for one in ran.recordings)[:-workers]
        assert sum(before_the_last) < 0.6 * workers
        if rest:
            line = f"leakcheck: {len(names)} of 12 tests judged in 0.6s: those that have waited longest come first"
            assert line in ran.one_line, ran.text
            assert f"{rest} session time" in ran.text
            never = 12 - len(names.union(*seen))
            more = r"about \d+ more sessions? until all were judged" if never else "earlier sessions have judged all"
            assert re.search(more, ran.one_line), ran.text
        new = {name for name in names if not any(name in earlier for earlier in seen)}
        assert new or set().union(*seen) == {f"test_it[{number}]" for number in range(12)}
        seen.append(names)


@pytest.mark.laboratory
def test_a_test_without_time_runs_once(project: Project) -> None:
    ran = project.run_test(SLOW + "\n    def test_last(): assert RUNS[11] == 1\n", ALL, "--leakcheck-session-time=0.1s")
    assert ran.last_line == "13 passed", ran.text
    assert "the next session begins with the same ones, because pytest's cache is off" in ran.one_line
