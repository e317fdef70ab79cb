from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.attribution.identity import Held
from pytest_leakcheck.budget import Budget
from pytest_leakcheck.finding import Finding, conclude
from pytest_leakcheck.plan import Plan
from pytest_leakcheck.report.json import check_writable, document, write
from pytest_leakcheck.result import Result
from pytest_leakcheck.series import Recording, Series
from pytest_leakcheck.verdict import Verdict


def finding(test: str = "tests/test_a.py::test_b", what: str = "/data/a.mp4") -> Finding:
    series = (Series("fd", tuple(range(18)), (0,) * 17), Series("heap", tuple(1000 * i for i in range(18))))
    verdicts = (
        Verdict("thread", "ok", iterations=13, floor=0.4),
        Verdict("fd", "leak", slope=1.0, level=13, iterations=17, reason="+1.0/iter sustained over 17 iterations"),
    )
    plan = Plan(test, (Budget("thread", 0), Budget("fd", 0)))
    held = {"fd": (Held(what, 17),)}
    return conclude(Result(plan, Recording(test, series), verdicts, held), ("leak",))


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "findings.json"


@pytest.fixture
def mask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_each_verdict_has_an_object_and_each_test_a_recording() -> None:
    one = finding()
    assert document([one]) == {
        "schema": 1,
        "findings": [
            {
                "test": "tests/test_a.py::test_b",
                "resource": "thread",
                "verdict": "ok",
                "colour": "green",
                "slope": 0.0,
                "level": 0,
                "floor": 0.4,
                "iterations": 13,
                "peak": False,
                "kind": "measured",
                "site": None,
                "owner": None,
                "culprit": None,
                "third_party": "",
                "held": [],
                "fingerprint": None,
                "reason": "",
                "law": None,
                "points": [],
                "seen": [],
            },
            {
                "test": "tests/test_a.py::test_b",
                "resource": "fd",
                "verdict": "leak",
                "colour": "red",
                "slope": 1.0,
                "level": 13,
                "floor": None,
                "iterations": 17,
                "peak": False,
                "kind": "measured",
                "site": None,
                "owner": None,
                "culprit": None,
                "third_party": "",
                "held": [{"what": "/data/a.mp4", "count": 17, "note": ""}],
                "fingerprint": one.fingerprint,
                "reason": "+1.0/iter sustained over 17 iterations",
                "law": None,
                "points": [],
                "seen": [{"resource": "heap", "slope": 1000.0, "level": 17000}],
            },
        ],
        "recordings": [one.recording.to_json()],
        "scaled": {},
    }


def test_the_file_holds_the_document_in_plain_utf_8(report: Path) -> None:
    one = finding("tests/test_a.py::test_naïve")
    write(report, [one])
    text = report.read_text(encoding="utf-8")
    assert "naïve" in text
    assert json.loads(text) == json.loads(json.dumps(document([one])))
    assert list(report.parent.iterdir()) == [report]


@pytest.mark.usefixtures("mask")
def test_its_mode_is_that_of_any_file_of_the_user(report: Path) -> None:
    write(report, [])
    assert report.stat().st_mode & 0o777 == 0o640
    # Asking for the mask must not change it.
    assert os.umask(0o027) == 0o027


def test_a_failing_write_leaves_the_earlier_file_and_nothing_else(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(report, [])
    before = report.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left on device"):
            write(report, [finding()])
    assert report.read_bytes() == before
    assert list(report.parent.iterdir()) == [report]
    write(report, [finding()])
    assert report.read_bytes() != before


def test_a_file_name_that_is_no_utf_8_does_not_lose_the_report(report: Path) -> None:
    # As the operating system's bytes arrive in Python.
    name = os.fsdecode(b"/data/caf\xe9.mp4")
    write(report, [finding(what=name)])
    assert json.loads(report.read_text(encoding="utf-8"))["findings"][1]["held"][0]["count"] == 17


def test_a_place_that_can_be_written_is_left_as_it_was(report: Path) -> None:
    assert check_writable(report) == ""
    assert list(report.parent.iterdir()) == []
    report.write_text("earlier")
    assert check_writable(report) == ""
    assert report.read_text() == "earlier"
    assert list(report.parent.iterdir()) == [report]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert check_writable(tmp_path) == "is a folder"


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    assert check_writable(tmp_path / "no" / "findings.json") == f"the folder {tmp_path / 'no'} does not exist"


def test_a_file_that_may_not_be_written_is_found_before_the_run(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report.write_text("earlier")
    report.chmod(0o444)
    # The superuser may write to it all the same, so the answer is given here.
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert check_writable(report) == "exists and may not be written"


def test_a_folder_that_may_not_be_written_is_found_before_the_run(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert check_writable(report) == "Permission denied"
