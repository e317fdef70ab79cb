"""A command in a separate process: how it ended, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from literal_readings import SleepingClock
from processes_left import left_over
from pytest_leakcheck.runner.processes import supervisor
from pytest_leakcheck.runner.processes.supervisor import (
    Board,
    BoardView,
    ProcessEnd,
    Start,
    end_tree,
    excerpt,
    has_ended,
    run,
    unsupported,
)

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported())

BEGIN = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    from pytest_leakcheck.runner.processes.supervisor import Board, file_of
    board = Board(file_of(Path(sys.argv[1]), "board"))
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
"""
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


def ran(folder: Path, program: str, patience: float = 30.0) -> ProcessEnd:
    command = [sys.executable, "-c", textwrap.dedent(BEGIN) + program, str(folder)]
    return run(Start(command, folder, os.environ, patience, patience), folder, lambda *_: None)


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (ProcessEnd(-11, 37, 1.0), "died of SIGSEGV (signal 11) in iteration 37"),
        (ProcessEnd(-9, 1, 1.0), "died of SIGKILL (signal 9) in iteration 1"),
        (ProcessEnd(-50, 2, 1.0), "died of a signal (signal 50) in iteration 2"),
        (ProcessEnd(3, 999, 1.0), "exited with status 3 in iteration 999"),
        (ProcessEnd(-1, 0, 0.0, error="Cannot allocate memory"), "could not be started: Cannot allocate memory"),
        (ProcessEnd(0, 0, 1.0), "exited with status 0 before the first iteration"),
        (ProcessEnd(-9, 37, 89.9, hung=True), "hung: no verdict after 90 s; killed in iteration 37"),
        (ProcessEnd(-15, 0, 61.0, hung=True), "hung: no verdict after 61 s; killed before the first iteration"),
    ],
)
def test_what_became_of_it_in_words(ended: ProcessEnd, reason: str) -> None:
    assert ended.reason == reason
    assert len(reason) <= 60 or not ended.iteration


def test_one_that_ends(tmp_path: Path) -> None:
    ended = ran(tmp_path, "board.iteration = 5; board.finish(); print('last words'); sys.exit(4)")
    assert (ended.status, ended.iteration, ended.hung) == (4, 5, False)
    assert ended.said == "last words"


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    ended = run(Start(["/no/such/program"], tmp_path, os.environ, 1.0, 1.0), tmp_path, lambda *_: None)
    assert ended.reason == "could not be started: No such file or directory"


def test_one_that_hangs(tmp_path: Path) -> None:
    """Even where it does not care for SIGTERM, and with all that it has started."""
    program = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
started = [subprocess.Popen(sleeper, start_new_session=own).pid for own in (False, True)]
Path("pids").write_text(" ".join(map(str, [os.getpid(), *started])))
board.iteration = 2
time.sleep(600)
"""
    ended = ran(tmp_path, program, patience=1.0)
    assert (ended.status, ended.iteration, ended.hung) == (-9, 2, True)
    assert ended.seconds < 30
    assert not left_over(tmp_path)


def test_patience_is_for_one_iteration(tmp_path: Path) -> None:
    program = "\nfor number in range(6): board.iteration = number + 1; time.sleep(0.5)\n"
    ended = ran(tmp_path, program, patience=2.5)
    assert (ended.status, ended.hung) == (0, False)
    assert ended.seconds > 2.5


def test_a_process_that_has_finished_gets_two_seconds_in_which_it_is_looked_at_a_hundred_times_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SleepingClock(monkeypatch)
    board, view = open_board(tmp_path)
    board.finish()
    process = cast("Any", SimpleNamespace(pid=0, has_ended=lambda: False))
    assert supervisor._wait(process, view, Start([], tmp_path, {}, 600.0, 600.0), lambda *_: None)
    assert len(clock.pauses) == pytest.approx(200, abs=2)
    board.close()
    view.close()


@pytest.mark.parametrize(("written", "read"), [(3000, 3000), (6000, 4095)])
def test_no_error_has_a_higher_number_than_the_kernel_gives(tmp_path: Path, written: int, read: int) -> None:
    board, view = open_board(tmp_path)
    board.set_unsent(written)
    assert view.unsent == read
    board.close()
    view.close()


def open_board(folder: Path) -> tuple[Board, BoardView]:
    path = folder / "board"
    path.write_bytes(bytes(Board.SIZE))
    return Board(path), BoardView(path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a request to Linux")
def test_the_kernel_is_asked_to_kill_a_process_with_its_parent() -> None:
    program = """if True:
        import ctypes, os
        from pytest_leakcheck.runner.processes.supervisor import die_with
        die_with(os.getppid())
        asked = ctypes.c_int()
        # PR_GET_PDEATHSIG
        ctypes.CDLL(None).prctl(2, ctypes.byref(asked))
        print(asked.value)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == signal.SIGKILL


def test_an_excerpt_is_the_end_without_the_machinery() -> None:
    text = "\n".join([*map(str, range(100)), 'File "/x/_pytest/main.py", line 1', 'File "/x/test_it.py", line 2'])
    assert excerpt(text).splitlines() == [*map(str, range(71, 100)), 'File "/x/test_it.py", line 2']
    assert excerpt("") == ""
    crash = ["Fatal Python error: Segmentation fault", 'File "/x/test_it.py", line 2', "C stack trace:"]
    stack = [
        *['  Binary file "/usr/bin/python", at _PyObject_MakeTpCall+0x8d [0x5739fd]'] * 32,
        "  <truncated rest of calls>",
    ]
    assert excerpt("\n".join([*crash, *stack])).splitlines() == crash


# Processes and what they have started are ended, within a grace, and their numbers stay theirs until then.


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
