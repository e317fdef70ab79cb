"""``pytest-leakcheck repro`` as a person uses it: lists, runs, is interrupted, and is asked by a script."""

from __future__ import annotations

import argparse
import json
import os
import pty
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.repro import command
from leakcheck_incidents.repro.command import _read_arguments, add_parser
from leakcheck_incidents.repro.run_arm import not_run
from shell import shell

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts exactly on Linux")


def test_the_incidents_are_listed_with_what_they_need(tmp_path: Path) -> None:
    listed = shell("repro", folder=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    lines = listed.stdout.splitlines()
    assert len(lines) == 2 * len(INCIDENTS)
    for incident in INCIDENTS.values():
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{incident.name} "))
        assert lines[at].endswith(incident.title)
        ready = f"ready: pytest-leakcheck repro {incident.name}"
        assert lines[at + 1].strip().startswith(f"needs {incident.missing[0]}" if incident.missing else ready)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pyav"], "repro pyav: unknown incident; use one of: pyav_loader, "),
        (["pyav_loader", "--arm", "broken"], "--arm broken: unknown arm; use one of: leaky, published, fixed or all"),
        (["rollout_executor", "--engine", "mpi"], "--engine mpi: unknown engine; use one of: gloo, ray"),
        (["pyav_loader", "--engine", "ray"], "--engine ray: unknown engine; leave it out: no world is run"),
        (
            ["pyav_loader", "--out", "file/below"],
            "--out file/below: Not a directory; use a writable folder",
        ),
    ],
)
def test_wrong_use_is_told_before_anything_runs(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "file").touch()
    done = shell("repro", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["repro", "pyav_loader", "--json", "x.json"], "repro: error: unrecognized arguments: x.json"),
        (["repro", "pyav_loader", "--", "train.py"], "repro: error: unrecognized arguments: -- train.py"),
        (["report", "watch.jsonl", "--arm", "leaky"], "report: error: unrecognized arguments: --arm leaky"),
    ],
)
def test_what_a_command_does_not_take_is_told_by_that_command(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = shell(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: pytest-leakcheck {arguments[0]} ")
    assert done.stderr.endswith(f"pytest-leakcheck {said}\n")
    assert not list(tmp_path.iterdir())


class Words(HTMLParser):
    """The text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.laboratory
def test_a_script_gets_json_and_a_person_a_page_with_both_arms(tmp_path: Path) -> None:
    done = shell("repro", "pyav_loader", "--json", "--out", "out", folder=tmp_path, limit=180)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["incident"] == "pyav_loader"
    leaky, fixed = told["arms"]
    assert [(one["arm"], one["status"], one["as_it_must"], one["partial"]) for one in told["arms"]] == [
        ("leaky", 1, True, False),
        ("fixed", 0, True, False),
    ]
    found = next(one for one in leaky["verdicts"] if "TestLoadersRetained" in one["test"])
    assert (found["resource"], found["verdict"], found["slope"]) == ("fd", "leak", 9.0)
    line = next(number for number, text in enumerate(_code("leaky").splitlines(), start=1) if "av.open(" in text)
    assert found["site"].endswith(f"pyav_loader/leaky.py:{line}")
    assert found["owner"] == "fixture stream._opened"
    assert {one["verdict"] for one in fixed["verdicts"]} == {"ok"}
    assert all(one["site"] is None for one in fixed["verdicts"])
    page = Words()
    page.feed((tmp_path / "out" / "pyav_loader.html").read_text(encoding="utf-8"))
    text = " ".join(page.text)
    # In the order of the story.
    story = (
        "leaky: red as expected (3 of 3 verdicts)",
        "fixed: green as expected (11 of 11 verdicts)",
        "What leaks in the leaky arm",
        "this process reaches its limit of 1,024 descriptors (ulimit -n) after ≈ 113 iterations",
        "pytest-leakcheck repro pyav_loader --arm leaky",
        "Where it is made",
        "self.container = av.open(str(path))",
        "What holds it",
        "fixture stream._opened",
        "What the fix changes",
        "+++ pyav_loader/fixed.py",
        "What the fixed run looks like",
        "within budget; would have caught",
    )
    at = 0
    for words in story:
        at = text.index(words, at)
    assert "released by the garbage collector only" in text
    assert "as expected  Test" not in text
    assert "interrupted" not in text
    # For people, and so not on the stream that a script reads.
    assert "leaky arm: 3 of 3 as expected" in done.stderr


def _code(name: str) -> str:
    import leakcheck_incidents

    return (Path(leakcheck_incidents.__file__).parent / "pyav_loader" / f"{name}.py").read_text(encoding="utf-8")


def test_all_arms_or_the_two_that_differ() -> None:
    """An arm that an incident has beside the two takes time, and shows nothing that the difference of the files explains."""
    assert _read_arguments(_given("hub_upload"), INCIDENTS)[1] == ("leaky", "fixed")
    assert _read_arguments(_given("hub_upload", "--arm", "all"), INCIDENTS)[1] == tuple(INCIDENTS["hub_upload"].arms)
    assert {"leaky_commit", "push_to_hub"} < INCIDENTS["hub_upload"].arms.keys()
    assert _read_arguments(_given("hub_upload", "--arm", "push_to_hub"), INCIDENTS)[1] == ("push_to_hub",)


@pytest.mark.parametrize("verbose", [False, True])
def test_it_ends_with_the_page_and_prints_the_diff_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, verbose: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_run_and_show", lambda *_arguments: [not_run("leaky"), not_run("fixed")])
    command.run(_given("pyav_loader", *(["-v"] if verbose else [])))
    printed = capsys.readouterr().out
    assert ("+++ pyav_loader/fixed.py" in printed) is verbose
    page = Path("leakcheck-repro", "pyav_loader.html")
    assert printed.endswith(f": {page}\n")
    assert "+++ pyav_loader/fixed.py" in page.read_text(encoding="utf-8")


def _given(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["repro", *arguments])


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


# How far it has come when the key arrives depends on the machine.
@pytest.mark.laboratory
@pytest.mark.parametrize("seconds", [0.0, 1.0, 4.0])
def test_an_interrupt_leaves_no_process_and_a_report_that_says_partial(tmp_path: Path, seconds: float) -> None:
    """In a terminal of its own, by its key: at once, while libraries are loaded, and in the midst of the first arm."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "pytest_leakcheck", "repro", "pyav_loader", "--no-open"])
    said = b""
    deadline = time.monotonic() + 600
    started: list[psutil.Process] = []
    began = 0.0
    while time.monotonic() < deadline:
        try:
            said += os.read(terminal, 1 << 16)
        except OSError:
            break
        started = started or _below(pid)
        if started and not began:
            began = time.monotonic()
        if began and time.monotonic() >= began + seconds:
            started += [one for one in _below(pid) if one not in started]
            os.write(terminal, b"\x03")
            began = float("inf")
    _pid, status = os.waitpid(pid, 0)
    os.close(terminal)
    text = said.decode(errors="replace")
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert "leaky arm: " in text
    assert "(partial: interrupted)" in text
    assert started
    assert not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    page = (tmp_path / "leakcheck-repro" / "pyav_loader.html").read_text(encoding="utf-8")
    assert "interrupted" in page
