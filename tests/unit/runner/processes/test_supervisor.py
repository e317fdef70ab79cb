"""A command in a separate process: how it ended, and that nothing of it is left."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import pytest

from processes_left import left_over
from pytest_leakcheck.runner.processes.supervisor import (
    Ended,
    Start,
    excerpt,
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


def ran(folder: Path, program: str, patience: float = 30.0) -> Ended:
    command = [sys.executable, "-c", textwrap.dedent(BEGIN) + program, str(folder)]
    return run(Start(command, folder, os.environ, patience, patience), folder, lambda *_: None)


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (Ended(-11, 37, 1.0), "died of SIGSEGV (signal 11) in iteration 37"),
        (Ended(-9, 1, 1.0), "died of SIGKILL (signal 9) in iteration 1"),
        (Ended(-50, 2, 1.0), "died of a signal (signal 50) in iteration 2"),
        (Ended(3, 999, 1.0), "exited with status 3 in iteration 999"),
        (Ended(-1, 0, 0.0, error="Cannot allocate memory"), "could not be started: Cannot allocate memory"),
        (Ended(0, 0, 1.0), "exited with status 0 before the first iteration"),
        (Ended(-9, 37, 89.9, hung=True), "hung: no verdict after 90 s; killed in iteration 37"),
        (Ended(-15, 0, 61.0, hung=True), "hung: no verdict after 61 s; killed before the first iteration"),
    ],
)
def test_what_became_of_it_in_words(ended: Ended, reason: str) -> None:
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


def test_an_excerpt_is_the_end_without_the_machinery() -> None:
    text = "\n".join([*map(str, range(100)), 'File "/x/_pytest/main.py", line 1', 'File "/x/test_it.py", line 2'])
    assert excerpt(text).splitlines() == [*map(str, range(71, 100)), 'File "/x/test_it.py", line 2']
    assert excerpt("") == ""
