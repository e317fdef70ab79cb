"""If the process of a test dies, hangs or cannot be started, that test gets a verdict, and no other test is held up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from processes_left import left_over
from projects import Project
from variants import variants

ISOLATE = "--leakcheck-isolate"
HEAD = """
    import ctypes, os, pathlib, subprocess, sys, time
    import pytest

    COUNT = [0]

    def at(iteration):
        COUNT[0] += 1
        return COUNT[0] == iteration
"""
DIES = """
    @pytest.mark.fd_budget(0)
    def test_crash():
        if at(7): ctypes.string_at({where})

    @pytest.mark.fd_budget(0)
    def test_exit():
        if at(7): {act}

    @pytest.mark.fd_budget(0)
    def test_kill():
        if at(7): {kill}

    def test_after(): pass
"""


@pytest.mark.parametrize("workers", variants(["0"], ["2"]))
def test_a_process_that_dies_is_a_verdict_and_no_other_test_is_held_up(project: Project, workers: str) -> None:
    acts = {"act": "os.write(2, b'first'); os._exit(3)", "kill": "os.kill(os.getpid(), 9)"}
    ran = project.run_test(HEAD + DIES.format(where=0, **acts), ISOLATE, "-s", "-n", workers)
    assert ran.last_line == "3 failed, 1 passed", ran.text
    assert {one["stopped"] for one in ran.recordings} == {"lost"}
    lines = [line for line in ran.text.splitlines() if not line.startswith("[gw")]
    for name, reason in (
        ("test_crash", "died of SIGSEGV (signal 11) in iteration 7"),
        ("test_exit", "exited with status 3 in iteration 7"),
        ("test_kill", "died of SIGKILL (signal 9) in iteration 7"),
    ):
        found = ran.finding(name)
        assert (found["verdict"], found["colour"], found["iterations"]) == ("inconclusive", "red", 6)
        first = lines[next(at for at, line in enumerate(lines) if f"_ {name} _" in line) + 1]
        assert first == found["reason"] == reason
        assert f"FAILED test_it.py::{name} - Failed: {reason[:15]}" in ran.text
    assert "Fatal Python error: Segmentation fault" in ran.text
    assert 'test_it.py", line 12 in test_crash' in ran.text
    after_exit = ran.text[ran.text.index("_ test_exit _") :]
    assert "first" in after_exit.partition("Captured stderr of the subprocess")[2]
    fixed = project.run_test(HEAD + DIES.format(where="b''", act="pass", kill="pass"), ISOLATE, "-n", workers)
    assert set(fixed.verdicts.values()) == {"ok"}


HANGS = """
    @pytest.mark.fd_budget(0)
    def test_it():
        if at(3):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={own})
            pathlib.Path("pids").write_text(f"{{os.getpid()}} {{child.pid}}")
            {act}
"""
# A hang that no exception ends: without this, the run is interrupted, and does not repeat.
DEAF = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 65)); time.sleep(600)"
SHORT = "from pytest_leakcheck.plugin.isolation import engines\nengines.START_UP = 4.0\n"


@pytest.mark.laboratory
@pytest.mark.parametrize("own", variants([False], [True]))
def test_a_hang(project: Project, own: bool) -> None:
    project.write("conftest.py", SHORT)
    project.write("test_it.py", HEAD + HANGS.format(own=own, act=DEAF) + "\n    def test_after(): pass\n")
    began = time.monotonic()
    outcome = project.run(ISOLATE, "--leakcheck-max-time=2")
    assert time.monotonic() - began < 60
    assert outcome.last_line == "1 failed, 1 passed", outcome.text
    reason = outcome.finding("test_it")["reason"]
    assert reason.startswith("hung: no verdict after ")
    assert reason.endswith(" s; killed in iteration 3")
    # Where it hangs is said.
    assert 'test_it.py", line 15 in test_it' in outcome.text
    assert not left_over(project.folder)
    project.write("test_it.py", HEAD + HANGS.format(own=own, act="child.kill(); child.wait()"))
    assert project.run(ISOLATE, "--leakcheck-max-time=2").status == 0


def test_what_a_test_leaves_running_ends_with_its_process(project: Project) -> None:
    """Threads that never end keep an interpreter from its end; a verdict that is known does not wait for that."""
    project.write(
        "test_it.py",
        HEAD
        + """
    import threading
    @pytest.mark.process_budget(0)
    def test_process():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open("pids", "a") as file: file.write(f"{child.pid} ")
    @pytest.mark.thread_budget(0)
    def test_thread(): threading.Thread(target=time.sleep, args=(600,)).start()
    """,
    )
    outcome = project.run(ISOLATE)
    assert outcome.verdicts == {("test_process", "process"): "leak", ("test_thread", "thread"): "leak"}, outcome.text
    assert not left_over(project.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_session_that_is_ended_takes_the_child_with_it(project: Project, number: signal.Signals) -> None:
    project.write("test_it.py", HEAD + HANGS.format(own=False, act="time.sleep(600)"))
    pids = project.folder / "pids"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--leakcheck", ISOLATE]
    # What one that is killed cannot remove goes with the project.
    environment = {**os.environ, "TMPDIR": str(project.folder)}
    session = subprocess.Popen(
        command, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 600
    while not (pids.exists() and pids.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    session.send_signal(number)
    text, _ = session.communicate(timeout=600)
    child, grandchild = map(int, pids.read_text().split())
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in text
        assert not left_over(project.folder)
    else:
        Path(pids).write_text(str(child))
        assert not left_over(project.folder)
        os.kill(grandchild, signal.SIGKILL)


@pytest.mark.laboratory
def test_a_timeout_is_that_of_the_test(project: Project) -> None:
    """The timer of pytest-timeout runs where the test does, and says what it says there."""
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.mark.fd_budget(0)
    @pytest.mark.timeout(2)
    def test_slow(): time.sleep(0.2)

    @pytest.mark.fd_budget(0)
    @pytest.mark.timeout(1)
    def test_first(): time.sleep(600)

    @pytest.mark.fd_budget(0)
    @pytest.mark.timeout(1, method="thread")
    def test_third():
        if at(3): time.sleep(600)
    """,
    )
    outcome = project.run(ISOLATE)
    assert outcome.last_line == "2 failed, 1 passed", outcome.text
    assert "Failed: Timeout (>1.0s) from pytest-timeout." in outcome.text
    assert outcome.finding("test_slow")["reason"].endswith(" iterations, 13 needed")
    assert outcome.finding("test_third")["reason"] == "exited with status 1 in iteration 3"


def test_a_test_that_is_not_found_again(project: Project) -> None:
    project.write(
        "test_it.py",
        HEAD
        + """
    @pytest.mark.fd_budget(0)
    @pytest.mark.parametrize("when", [{id}])
    def test_it(when): pass
    """.replace("{id}", "time.time_ns()"),
    )
    outcome = project.run(ISOLATE)
    assert outcome.last_line == "1 failed"
    assert "not found again in a separate process" in outcome.text
    said = outcome.one_line
    assert "the test's id changes from one collection to the next" in said
    assert "give its parameters fixed ids" in said
    project.write("test_it.py", (project.folder / "test_it.py").read_text().replace("time.time_ns()", "5"))
    assert project.run(ISOLATE).last_line == "1 passed"


def test_a_file_that_cannot_be_imported_twice(project: Project) -> None:
    project.write(
        "test_it.py",
        HEAD
        + """
    if pathlib.Path("here").exists(): raise RuntimeError("second import")
    pathlib.Path("here").touch()
    @pytest.mark.fd_budget(0)
    def test_it(): pass
    """,
    )
    outcome = project.run(ISOLATE)
    assert outcome.last_line == "1 failed"
    assert "could not be collected in a separate process" in outcome.text
    assert "RuntimeError: second import" in outcome.text
