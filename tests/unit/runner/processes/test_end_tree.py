"""Processes and what they have started are ended, within a grace, and their numbers stay theirs until then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from processes_left import left_over
from pytest_leakcheck.runner.processes.supervisor import end_tree, has_ended, unsupported

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported())

# Notes who is there: itself, a child of its group and one that has left it; then it goes on as it is asked to.
FAMILY = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    {first}
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    family = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session={leaves})]
    Path("new").write_text(" ".join(str(pid) for pid in (os.getpid(), *(one.pid for one in family))))
    Path("new").rename("pids")
    {last}
"""
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def start(
    folder: Path, first: str = "", last: str = "time.sleep(600)", *, leaves: bool = True
) -> subprocess.Popen[bytes]:
    program = textwrap.dedent(FAMILY).format(first=first, last=last, leaves=leaves)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=folder, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize("group", [True, False])
@pytest.mark.parametrize(
    ("first", "grace", "status"),
    [("", 30.0, -signal.SIGTERM), (STUBBORN, 0.1, -signal.SIGKILL), ("", 0.0, -signal.SIGKILL)],
    ids=["polite", "stubborn", "at once"],
)
def test_nothing_is_left(tmp_path: Path, first: str, grace: float, status: int, *, group: bool) -> None:
    process = start(tmp_path, first)
    end_tree(process, grace=grace, group=group)
    assert process.returncode == status
    assert not left_over(tmp_path)


def test_the_group_of_a_leader_that_has_ended(tmp_path: Path) -> None:
    process = start(tmp_path, last="os._exit(7)", leaves=False)
    deadline = time.monotonic() + 60
    while not has_ended(process):
        assert time.monotonic() < deadline
    # Its number is not free yet.
    assert process.returncode is None
    os.kill(process.pid, 0)
    end_tree(process, grace=30.0, group=True)
    assert process.returncode == 7
    assert not left_over(tmp_path)


def test_an_interrupt_cuts_the_grace_short(tmp_path: Path) -> None:
    process = start(tmp_path, STUBBORN)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            end_tree(process, grace=600.0, group=True)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert process.returncode == -signal.SIGKILL
    assert not left_over(tmp_path)


def test_several_share_one_grace(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    processes = [start(folder, STUBBORN) for folder in folders]
    began = time.monotonic()
    end_tree(*processes, grace=3.0, group=False)
    assert time.monotonic() - began < 5.5
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
    assert not [pid for folder in folders for pid in left_over(folder)]
