from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude
from pytest_leakcheck.model.culprit import Remainder
from pytest_leakcheck.model.decoding import DecodeError, decode, encode
from pytest_leakcheck.model.finding import Causes, Finding, Verdict
from pytest_leakcheck.model.recording import Recording, Series
from pytest_leakcheck.report.json_file import (
    FirstLine,
    LastLine,
    Report,
    ReportError,
    Session,
    is_report,
    read,
    to_line,
)

SESSION = Session("2 tests: 2 leak", command="pytest --leakcheck")


def finding(test: str = "tests/test_a.py::test_b", what: str = "/data/a.mp4") -> Finding:
    series = (Series("fd", tuple(range(18)), (0,) * 17), Series("heap", tuple(1000 * i for i in range(18))))
    verdicts = (
        Verdict("thread", "ok", iterations=13, floor=0.4),
        Verdict("fd", "leak", slope=1.0, level=13, iterations=17, reason="+1.0/iter sustained over 17 iterations"),
    )
    plan = Plan(test, (Budget("thread", 0), Budget("fd", 0)))
    held = {"fd": (Remainder(what, 17),)}
    return conclude(Result(plan, Recording(test, series), verdicts, held), Policy(("leak",)))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "findings.json"


def text_of(*findings: Finding) -> str:
    last = LastLine(SESSION, Causes(findings).list())
    return to_line(FirstLine({})) + "".join(map(to_line, findings)) + to_line(last)


def test_each_test_has_an_object_with_its_verdicts_the_worst_first() -> None:
    one = finding()
    first, line, last = map(json.loads, text_of(one).splitlines())
    assert first == {"schema": 4, "resources": {}}
    assert line == {
        "test": "tests/test_a.py::test_b",
        "verdicts": [
            {
                "resource": "fd",
                "verdict": "leak",
                "colour": "red",
                "slope": 1.0,
                "level": 13,
                "iterations": 17,
                "reason": "+1.0/iter sustained over 17 iterations",
            },
            {"resource": "thread", "verdict": "ok", "colour": "green", "floor": 0.4, "iterations": 13},
        ],
        "budgets": {"thread": "0", "fd": "0"},
        "seen": [{"resource": "heap", "slope": 1000.0, "level": 17000}],
        "held": {"fd": [{"what": "/data/a.mp4", "count": 17, "note": ""}]},
        "recording": json.loads(json.dumps(encode(one.recording))),
        "reasons": {},
        "colour": "red",
        "fingerprint": one.fingerprint,
    }
    assert last == {
        "session": {"headline": "2 tests: 2 leak", "command": "pytest --leakcheck"},
        "causes": [
            {
                "finding": one.fingerprint,
                "resource": "fd",
                "verdict": "leak",
                "colour": "red",
                "slowest": 1.0,
                "fastest": 1.0,
                "tests": ["tests/test_a.py::test_b"],
            },
        ],
    }


def test_what_has_its_default_is_left_out_and_comes_back() -> None:
    one = finding()
    assert decode(Finding, json.loads(json.dumps(encode(one)))) == one
    verdict = encode(Verdict("fd", "ok"))
    assert verdict == {"resource": "fd", "verdict": "ok"}
    assert decode(Verdict, verdict) == Verdict("fd", "ok")
    with pytest.raises(DecodeError, match="verdict: expected 'ok' or"):
        decode(Verdict, {"resource": "fd"})


def test_what_was_written_is_read(report: Path) -> None:
    # The separator is a line break for `str.splitlines`.
    one, two = finding("test_naïve"), finding("test_\u2028")
    report.write_text(text_of(one, two), encoding="ascii")
    assert len(report.read_text(encoding="ascii").splitlines()) == 4
    assert is_report(report)
    found = read(report)
    assert found == Report((one, two), {}, SESSION)
    assert found.notice == ""


@pytest.mark.parametrize("torn", ["", to_line(finding("test_two"))[:-20]])
def test_a_killed_session_has_the_findings_that_it_had_written(report: Path, torn: str) -> None:
    one = finding()
    report.write_text(to_line(FirstLine({})) + to_line(one) + torn)
    found = read(report)
    assert found == Report((one,), {}, None)
    assert found.notice == "the run did not end (no line of the session): it has 1 finding"
    report.write_text(to_line(FirstLine({})))
    assert read(report).findings == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a report: it does not begin with "),
        ("[]\n", "not a report: it does not begin with "),
        ('{"schema": 1, "known": []}\n', "not a report: it does not begin with "),
        ('{"schema": 3, "findings": [\n]}\n', "a report of schema 3: this version reads schema 4"),
        ('{"schema": 99, "resources": {}}\n', "a report of schema 99: this version reads schema 4"),
        ('{"schema": 4, "resources": 3}\n', "damaged in line 1: resources: expected object, got 3"),
        ('{"schema": 4, "resources": {}}\n3\n', "damaged in line 2: value: expected object, got 3"),
        ('{"schema": 4, "resources": {}}\n{]\n', "damaged in line 2: not JSON: "),
        ('{"schema": 4, "resources": {}}\n{"test": "a"}\n', "damaged in line 2: verdicts: expected list, got nothing"),
        ('{"schema": 4, "resources": {}}\n{"session": 3}\n', "damaged in line 2: session: expected object, got 3"),
    ],
)
def test_what_is_no_report_says_so(report: Path, text: str, said: str) -> None:
    report.write_text(text)
    with pytest.raises(ReportError) as caught:
        read(report)
    message = str(caught.value)
    assert message.startswith(said)
    assert message.endswith("; write a new report: pytest --leakcheck --leakcheck-json=FILE")
    assert is_report(report) == (not said.startswith("not a report"))


def test_what_is_damaged_is_named_by_its_line_and_path(report: Path) -> None:
    whole = text_of(finding("test_a"), finding("test_b"))
    for old, new, said in (
        ('"count": 17', '"count": "x"', "held.fd[0].count: expected int, got 'x'"),
        ('"resource": "thread"', '"resource": "door"', "verdicts[1].resource: expected one of fd, "),
    ):
        first, one, two, last = whole.splitlines(keepends=True)
        report.write_text(first + one + two.replace(old, new) + last)
        with pytest.raises(ReportError) as caught:
            read(report)
        assert f"damaged in line 3: {said}" in str(caught.value)


def test_a_file_name_that_is_no_utf_8_does_not_lose_the_report(report: Path) -> None:
    # As the operating system's bytes arrive in Python.
    name = os.fsdecode(b"/data/caf\xe9.mp4")
    report.write_text(text_of(finding(what=name)))
    assert read(report).findings[0].held["fd"][0].what == name
