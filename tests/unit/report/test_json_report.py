from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import tty
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import conclude
from pytest_leakcheck.judge.policy import Policy
from pytest_leakcheck.judge.result import Result
from pytest_leakcheck.model.cause import Causes
from pytest_leakcheck.model.culprit import Held
from pytest_leakcheck.model.decoding import DecodeError, decode, encode
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.recording import Recording, Series
from pytest_leakcheck.model.verdict import Verdict
from pytest_leakcheck.report import json_file
from pytest_leakcheck.report.json_file import document, read, to_line
from pytest_leakcheck.report.output_file import check_writable


def finding(test: str = "tests/test_a.py::test_b", what: str = "/data/a.mp4") -> Finding:
    series = (Series("fd", tuple(range(18)), (0,) * 17), Series("heap", tuple(1000 * i for i in range(18))))
    verdicts = (
        Verdict("thread", "ok", iterations=13, floor=0.4),
        Verdict("fd", "leak", slope=1.0, level=13, iterations=17, reason="+1.0/iter sustained over 17 iterations"),
    )
    plan = Plan(test, (Budget("thread", 0), Budget("fd", 0)))
    held = {"fd": (Held(what, 17),)}
    return conclude(Result(plan, Recording(test, series), verdicts, held), Policy(("leak",)))


def write(path: Path, findings: Iterable[Finding]) -> None:
    kept = list(findings)
    json_file.write(path, map(to_line, kept), Causes(kept).list())


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "findings.json"


@pytest.fixture
def mask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_each_test_has_an_object_with_its_verdicts_the_worst_first() -> None:
    one = finding()
    assert encode(document([one])) == {
        "schema": 3,
        "findings": [
            {
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
                "recording": encode(one.recording),
                "reasons": {},
                "colour": "red",
                "fingerprint": one.fingerprint,
            },
        ],
        "resources": {},
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


def test_a_file_has_a_finding_on_each_line(report: Path) -> None:
    write(report, [finding("test_a"), finding("test_b")])
    lines = report.read_text(encoding="utf-8").splitlines()
    assert [line[:18] for line in lines[1:3]] == ['{"test": "test_a",', '{"test": "test_b",']
    # Then the causes, likewise: without a known line, each test is one.
    assert ["test_a" in lines[4], "test_b" in lines[5]] == [True, True]
    assert len(lines) == 7
    assert read(report.read_text(encoding="utf-8")) == document([finding("test_a"), finding("test_b")])


def test_the_file_holds_the_document_in_plain_utf_8(report: Path) -> None:
    one = finding("tests/test_a.py::test_naïve")
    write(report, [one])
    text = report.read_text(encoding="utf-8")
    assert "naïve" in text
    assert json.loads(text) == json.loads(json.dumps(encode(document([one]))))
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
    assert json.loads(report.read_text(encoding="utf-8"))["findings"][0]["held"]["fd"][0]["count"] == 17


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
    assert check_writable(report) == "exists and is not writable"


def test_a_folder_that_may_not_be_written_is_found_before_the_run(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    assert check_writable(report) == "Permission denied"


@pytest.mark.usefixtures("mask")
def test_the_mode_of_an_earlier_report_is_kept(report: Path) -> None:
    report.write_text("earlier")
    for mode in (0o600, 0o664):
        report.chmod(mode)
        write(report, [])
        assert report.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "links").mkdir()
    target, link = tmp_path / "kept" / "report.json", tmp_path / "links" / "latest.json"
    link.symlink_to(Path("..", "kept", "report.json"))
    if there:
        target.write_text("earlier")
        target.chmod(0o600)
    assert check_writable(link) == ""
    write(link, [])
    assert link.is_symlink()
    assert not target.is_symlink()
    assert json.loads(target.read_text(encoding="utf-8"))["findings"] == []
    assert [one.name for one in (*link.parent.iterdir(), *target.parent.iterdir())] == ["latest.json", "report.json"]
    if there:
        assert target.stat().st_mode & 0o777 == 0o600


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    link = tmp_path / "latest.json"
    link.symlink_to(tmp_path / "gone" / "report.json")
    assert check_writable(link) == f"the folder {tmp_path / 'gone'} does not exist"
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    assert check_writable(loop) == os.strerror(errno.ELOOP)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Without waiting, though no process reads from it yet.
    assert check_writable(pipe) == ""
    with pytest.raises(OSError, match="no process has it open for reading"):
        write(pipe, [])
    # More than a pipe holds.
    findings = [finding(f"test_{number}") for number in range(200)]
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    for _ in range(1000):
        with contextlib.suppress(OSError):
            write(pipe, findings)
            break
        time.sleep(0.01)
    reader.join(10)
    assert json.loads(read[0]) == json.loads(json.dumps(encode(document(findings))))
    assert len(read[0]) > 1 << 16
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_device_is_written_to() -> None:
    ours, theirs = os.openpty()
    try:
        tty.setraw(theirs)
        device = Path(os.ttyname(theirs))
        before = device.stat()
        assert check_writable(device) == ""
        write(device, [])
        after = device.stat()
        assert (stat.S_ISCHR(after.st_mode), after.st_ino, after.st_rdev) == (True, before.st_ino, before.st_rdev)
        assert json.loads(os.read(ours, 1 << 16))["findings"] == []
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_is_none_to_write_a_report_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind("socket")
        assert check_writable(tmp_path / "socket") == "is a socket"
        with pytest.raises(OSError, match="is a socket"):
            write(tmp_path / "socket", [])


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "out.txt"])
def test_the_own_output_is_written_to(tmp_path: Path, path: str) -> None:
    """Whatever that is; a file that the shell has sent it to is not replaced under it."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pytest_leakcheck.report.json_file import write\n"
        "from pytest_leakcheck.report.output_file import check_writable\n"
        "print('before')\n"
        "assert check_writable(Path(sys.argv[1])) == ''\n"
        "write(Path(sys.argv[1]), [])\n"
        "print('after')\n"
    )
    out = tmp_path / "out.txt"
    with out.open("w") as file:
        subprocess.run([sys.executable, "-c", program, path], cwd=tmp_path, stdout=file, check=True, timeout=60)
    lines = out.read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert json.loads("\n".join(lines[1:-1]))["findings"] == []
    assert list(tmp_path.iterdir()) == [out]
