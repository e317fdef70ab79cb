from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report.journal import Journal
from pytest_leakcheck.report.json_file import ReportError, document, read

ONE, TWO = (
    Finding(name, (Verdict("fd", "leak", colour="red"),), {}, (), {}, Recording(name, ()), {})
    for name in ("test_one", "test_two")
)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "findings.json"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_findings_are_on_disk_as_they_come(report: Path) -> None:
    journal = Journal(report)
    assert names(report.parent) == []
    journal.begin()
    journal.add(ONE)
    partial = read(journal.path.read_text(encoding="utf-8"))
    assert (partial.findings, partial.partial) == ((ONE,), True)
    assert names(report.parent) == ["findings.json.partial"]
    journal.add(TWO)
    journal.finish()
    assert read(report.read_text(encoding="utf-8")) == document([ONE, TWO])
    assert names(report.parent) == ["findings.json"]


def test_a_session_that_is_killed_leaves_what_it_found_and_the_earlier_report_aside(report: Path) -> None:
    report.write_text("earlier")
    journal = Journal(report)
    journal.begin()
    journal.add(ONE)
    journal.add(TWO)
    assert names(report.parent) == ["findings.json.old", "findings.json.partial"]
    text = journal.path.read_text(encoding="utf-8")
    # Killed in the midst of the second line.
    assert read(text[:-20]).findings == (ONE,)
    assert read(text.splitlines()[0] + "\n{").findings == ()
    # The next session writes its own.
    later = Journal(report)
    later.begin()
    later.add(TWO)
    later.finish()
    assert read(report.read_text(encoding="utf-8")) == document([TWO])
    assert names(report.parent) == ["findings.json"]


def test_an_empty_journal_is_a_partial_report_without_findings(report: Path) -> None:
    journal = Journal(report)
    journal.begin()
    text = journal.path.read_text(encoding="utf-8")
    assert (read(text).findings, read(text).partial) == ((), True)
    with pytest.raises(ReportError, match="schema None is not 3"):
        read("{}\n{}\n")


def test_mode_and_link_of_the_earlier_report_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "kept.json", tmp_path / "latest.json"
    target.write_text("earlier")
    target.chmod(0o600)
    link.symlink_to(target)
    journal = Journal(link)
    journal.begin()
    journal.add(ONE)
    journal.finish()
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert read(target.read_text(encoding="utf-8")) == document([ONE])
    assert names(tmp_path) == ["kept.json", "latest.json"]


def test_a_test_that_changes_the_umask_does_not_change_the_mode_of_the_report(report: Path) -> None:
    before = os.umask(0o022)
    try:
        journal = Journal(report)
        journal.begin()
        os.umask(0o777)
        journal.add(ONE)
        journal.finish()
        assert report.stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


def test_what_cannot_be_written_as_it_comes_is_written_at_the_end(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(report)
    journal.begin()
    journal.add(ONE)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        journal.add(TWO)
    journal.finish()
    assert read(report.read_text(encoding="utf-8")) == document([ONE, TWO])


def test_a_device_has_no_journal(tmp_path: Path) -> None:
    device = tmp_path / "pipe"
    os.mkfifo(device)
    reader = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    try:
        journal = Journal(device)
        journal.begin()
        journal.add(ONE)
        assert names(tmp_path) == ["pipe"]
        journal.finish()
        assert json.loads(os.read(reader, 1 << 16))["findings"][0]["test"] == "test_one"
        assert names(tmp_path) == ["pipe"]
    finally:
        os.close(reader)
