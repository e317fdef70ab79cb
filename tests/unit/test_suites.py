"""The samples of whole suites: what is drawn, how two runs are compared, and what the figures count."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from projects import ROOT
from suite_catalog import SUITES
from suite_figures import Run, compare, compute, draw, parse_junit, parse_outcomes, parse_session

TESTS = [
    *(f"a.py::test_many[{number}]" for number in range(50)),
    *(f"a.py::test_{number}" for number in range(10)),
    "b.py::TestClass::test_x",
    "b.py::TestClass::test_y",
]
SUMMARY = """
PASSED printed.py::by a test
=== short test summary info ===
PASSED ../lib/t.py::test_a[b - c: d]
SKIPPED [2] ../lib/t.py:40: not here: no - never
XFAIL ../lib/t.py::test_x - reason
FAILED ../lib/t.py::test_f - assert 1 == 2
PASSED ../lib/t.py::test_l
LEAK ../lib/t.py::test_l - LeakError: fd
OVER BUDGET ../lib/t.py::test_o - LeakError: fd
3 failed, 2 passed, 1 warning in 0.1s
"""


@pytest.mark.parametrize("seed", range(5))
def test_one_case_of_each_function_comes_first(seed: int) -> None:
    drawn = draw(TESTS, 13, seed)
    assert len({test.partition("[")[0] for test in drawn}) == 13
    # The smaller file is not left behind.
    assert len([test for test in drawn[:4] if test.startswith("b.py")]) == 2


def test_a_sample_is_that_of_its_seed() -> None:
    assert draw(TESTS, 20, 1) == draw(TESTS, 20, 1) != draw(TESTS, 20, 2)


def test_more_than_there_is() -> None:
    assert sorted(draw(TESTS, 1000, 1)) == sorted(TESTS)


def test_outcomes_are_read_without_messages() -> None:
    assert parse_outcomes(SUMMARY, "../lib/") == Counter(
        {
            "PASSED t.py::test_a[b - c: d]": 1,
            "SKIPPED [2] t.py:40": 1,
            "XFAIL t.py::test_x": 1,
            "FAILED t.py::test_f": 1,
            "PASSED t.py::test_l": 1,
            "LEAK t.py::test_l": 1,
            "OVER BUDGET t.py::test_o": 1,
        }
    )


def test_only_one_more_report_of_a_red_test_may_differ() -> None:
    plain = Counter(["PASSED t.py::a", "PASSED t.py::b"])
    assert compare(plain, plain + Counter(["LEAK t.py::a"]), ["t.py::a"]) == []
    assert compare(plain, plain + Counter(["LEAK t.py::a"] * 2), ["t.py::a"]) == ["+ LEAK t.py::a"]
    assert compare(plain, plain + Counter(["LEAK t.py::b"]), ["t.py::a"]) == ["+ LEAK t.py::b"]
    lost = Counter(["LEAK t.py::a", "FAILED t.py::b"])
    assert compare(plain, lost, ["t.py::a"]) == ["- PASSED t.py::a", "- PASSED t.py::b", "+ FAILED t.py::b"]


def test_what_else_a_user_sees_of_a_session() -> None:
    assert parse_session(SUMMARY, 1) == Counter(["exit status 1", "3 failed, 2 passed, 1 warning"])
    assert parse_session("", 5) == Counter(["exit status 5"])
    cases = '<testcase classname="t" name="a" time="1"/><testcase classname="t" name="b"><failure/></testcase>'
    totals = 'tests="2" failures="1" errors="0" skipped="0"'
    assert parse_junit(f"<testsuites><testsuite {totals}>{cases}</testsuite></testsuites>") == Counter(
        ["junit tests=2 failures=1 errors=0 skipped=0", "junit t::a passed", "junit t::b failure"]
    )


def finding(test: str, verdict: str, colour: str, **recording: Any) -> dict[str, Any]:
    first = {"resource": "fd", "verdict": verdict, "reason": "why"}
    return {"test": test, "verdicts": [first], "colour": colour, "fingerprint": "abc", "recording": recording}


def run(*outcomes: str, cpu: float = 1.0, status: int = 0) -> Run:
    return Run(Counter(outcomes), Counter([f"exit status {status}"]), cpu, {"a": 0.01, "b": 0.03})


def test_figures() -> None:
    plain = run(*(f"PASSED {name}" for name in "abcdef"), "ERROR f")
    judged = run("LEAK a", *(f"PASSED {name}" for name in "abcdef"), "ERROR f", cpu=5.0, status=1)
    findings = [
        finding("a", "leak", "red"),
        finding("b", "ok", "green"),
        finding("c", "inconclusive", "yellow"),
        finding("d", "inconclusive", "yellow", stopped="failed"),
        finding("f", "ok", "green"),
    ]
    figures = compute("it 1", [plain, judged, plain], findings, {"first pass": 1.014})
    assert figures.passed == 5
    assert figures.outcomes == {"leak": 1, "ok": 1, "inconclusive": 1, "does not repeat": 1}
    assert figures.red == {"abc": ["a"]}
    assert figures.notes == ["inconclusive c: fd: why", "does not repeat d: fd: why", "not judged: e"]
    assert (figures.differing, figures.differing_without_failing) == ([], [])
    assert (figures.ratios["plain"], figures.median_seconds, figures.cpu_per_judged) == (5.0, 0.02, 1.25)
    row = "| it 1 | 2 | 4 of 5 | 1 | 1 (1) | 0 | 0 | 1 | 1 | 0 / 0 | 5.0 | 1.01 | - | 20.0 | 1250 |"
    assert f"{row}\n  red abc: a\n" in str(figures)
    # A session is compared where nothing fails.
    assert compute("it 1", [plain, judged, judged], findings, {}).differing_without_failing == [
        "- exit status 0",
        "+ LEAK a",
        "+ exit status 1",
    ]


def test_each_leak_in_a_baseline_was_looked_into() -> None:
    files = {path.stem: path for path in (ROOT / "ci" / "suites" / "baselines").glob("*.json")}
    assert files.keys() <= {suite.name.replace(" ", "-") for suite in SUITES}
    entries = [one for path in files.values() for one in json.loads(path.read_text(encoding="utf-8"))["known"]]
    assert entries
    kinds = ("true: ", "by design: ", "false: ")
    assert [one["finding"] for one in entries if not one["reason"].startswith(kinds)] == []
