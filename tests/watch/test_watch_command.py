"""`pytest-leakcheck watch` as users start it: a leak and its fix, Ctrl-C, exit status, a terminal, wrong use."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pytest_leakcheck.watch.history import read_histories
from pytest_leakcheck.watch.status_text import page_of_ledger

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are watched through /proc")

# Two descriptors per step, or none; a step takes as long as the watch needs to see it.
TRAINING = """
import os, sys, time
from pytest_leakcheck.watch.training import Watcher
kept = []
with Watcher(interval=0.01) as watcher:
    for step in range(int(sys.argv[2])):
        took = [os.open(os.devnull, os.O_RDONLY) for _ in range(2)]
        if sys.argv[1] == "leaky":
            kept += took
        else:
            for descriptor in took:
                os.close(descriptor)
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            sum(range(1000))
        watcher.step()
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""


@pytest.fixture
def training(tmp_path: Path) -> Path:
    path = tmp_path / "training.py"
    path.write_text(TRAINING, encoding="utf-8")
    return path


def start(folder: Path, *arguments: str | Path, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pytest_leakcheck", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    return subprocess.Popen(command, cwd=folder, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


def run(folder: Path, *arguments: str | Path) -> tuple[int, str, str]:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


@contextlib.contextmanager
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not done():
        assert time.monotonic() < deadline, "the watch wrote nothing"
        time.sleep(0.01)


def wait_for_lines(path: Path, lines: int) -> None:
    wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= lines)


def test_a_command_leaky_and_fixed(training: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "watch.jsonl"
    options = ("watch", "--interval", "0.02", "--ledger", ledger, "--")
    status, _out, err = run(tmp_path, *options, sys.executable, training, "leaky", "200")
    assert status == 0
    assert "+2.00 per step (" in err
    assert "runs out in ≈ " in err
    assert " × /dev/null" in err
    assert err.splitlines()[-1] == f"  the process ended; for an HTML page: pytest-leakcheck report {ledger}"

    status, _out, err = run(tmp_path, *options, sys.executable, training, "fixed", "200")
    assert status == 0
    assert "no growth seen; would have caught ≥ " in err
    assert "runs out in" not in err

    leaky, fixed = page_of_ledger(ledger).cards
    assert (leaky.tone, leaky.badge, fixed.tone, fixed.badge) == ("bad", "grows", "good", "no growth")
    assert re.match(r"fd \+2.00 per step \(.*; runs out in ≈ ", leaky.lead)
    assert fixed.lead == ""
    chart = leaky.charts[0]
    assert (chart.title, chart.axis) == ("fd: descriptors", "step")
    assert chart.curves[0].line is not None
    done, out, _err = run(tmp_path, "report", ledger, "--no-open")
    assert done == 0
    assert out.split() == [str(ledger.with_suffix(".html"))]


@pytest.mark.parametrize(("said", "status"), [("exit 7", 7), ("kill -9 $$", 128 + 9)])
def test_the_status_of_a_command_is_passed_on(tmp_path: Path, said: str, status: int) -> None:
    assert run(tmp_path, "watch", "--", "sh", "-c", said)[0] == status


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    status, _out, err = run(tmp_path, "watch", "--", "no-such-command")
    assert status == 127
    assert err == "pytest-leakcheck watch: no-such-command: No such file or directory\n"
    # Nothing was watched, so nothing is left behind.
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_ends_neither_the_watch_nor_the_training(training: Path, tmp_path: Path) -> None:
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1200, resource.RLIM_INFINITY))

    options = ("--interval", "0.02", "--ledger", "a.jsonl")
    command = (sys.executable, training, "fixed", "50", "5")
    process = start(tmp_path, "watch", *options, "--", *command, preexec_fn=limit_files)
    _out, err = process.communicate(timeout=600)
    assert process.returncode == 5
    # It went on with the steps of the training after a line could not be written.
    assert max(int(step) for step in re.findall(r"step (\d+)", err)) > 1, err
    assert "note    the ledger ends here, it can no longer be written: File too large" in err
    # The line that was cut costs only itself.
    (history,) = read_histories(tmp_path / "a.jsonl")
    assert history.samples > 0


def test_ctrl_c_prints_the_last_state_and_leaves_the_process_alone(tmp_path: Path) -> None:
    with sleeper() as pid:
        process = start(tmp_path, "watch", str(pid), "--interval", "0.01")
        ledger = tmp_path / f"watch-{pid}.jsonl"
        wait_for_lines(ledger, 40)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        assert (process.returncode, err) == (0, "")
        assert "no growth seen" in out
        assert "stopped by Ctrl-C" in out
        assert psutil.pid_exists(pid)
    (history,) = read_histories(ledger)
    assert history.ended == "stopped by Ctrl-C"


def test_ctrl_c_leaves_nothing_of_a_command(tmp_path: Path) -> None:
    """As on a terminal, where it reaches the command, too; that has a child of its own."""
    ledger = tmp_path / "watch.jsonl"
    command = ("sh", "-c", "sleep 60 & echo $! > child; wait")
    process = start(tmp_path, "watch", "--interval", "0.01", "--ledger", ledger, "--", *command, start_new_session=True)
    child = tmp_path / "child"
    wait_for_lines(child, 1)
    wait_for(lambda: ledger.exists() and "of sleep" in ledger.read_text(encoding="utf-8"))
    os.killpg(process.pid, signal.SIGINT)
    _out, err = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped by Ctrl-C" in err
    assert "Traceback" not in err
    assert not alive(int(child.read_text()))


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_watch_that_was_killed_is_a_partial_page(tmp_path: Path) -> None:
    with sleeper() as pid:
        process = start(tmp_path, "watch", str(pid), "--interval", "0.01")
        ledger = tmp_path / f"watch-{pid}.jsonl"
        wait_for_lines(ledger, 10)
        process.kill()
        process.communicate()
    page = page_of_ledger(ledger)
    assert page.partial
    (note,) = page.cards[0].parts[-1].rows
    assert note[1] == "No end was recorded: the watch was killed, or is still running."


def read_all(descriptor: int) -> bytes:
    """What there is; nothing at the end, which a terminal tells by an error."""
    with contextlib.suppress(OSError):
        return os.read(descriptor, 65536)
    return b""


def test_a_terminal_has_a_table(tmp_path: Path) -> None:
    ledger = tmp_path / "watch.jsonl"
    near, far = pty.openpty()
    seen: list[bytes] = []
    with sleeper() as pid:
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        options = ("--interval", "0.01", "--refresh", "0.01", "--ledger", ledger)
        process = start(tmp_path, "watch", str(pid), *options, stdout=far, env=environment)
        os.close(far)
        screen = threading.Thread(target=lambda: seen.extend(iter(lambda: read_all(near), b"")))
        screen.start()
        wait_for_lines(ledger, 40)
    screen.join()
    os.close(near)
    process.communicate(timeout=600)
    assert process.returncode == 0
    text = b"".join(seen).decode()
    # Each drawing erases the one before it.
    assert "\x1b[2K" in text
    assert text.count(f"{pid} sleep …: ") > 2
    assert "no growth seen" in text


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["watch"], 2, "either a PID or -- and a COMMAND"),
        (["watch", "1", "--", "true"], 2, "either a PID or -- and a COMMAND"),
        (["watch", "1", "--interval", "0"], 2, "a number of seconds above 0"),
        (["watch", "999999999"], 3, "there is no process 999999999"),
        (["watch", "-1"], 2, "-1: must be the number of a process, such as 4711"),
        (["watch", "1", "--ledger", "no/such/folder/x"], 3, "No such file or directory"),
        (["watch", "1", "--ledger", "/dev/full"], 3, "/dev/full: a device, not a regular file; name a regular file"),
        (["watch", "--ledger", __file__, "--", "touch", "started"], 3, "it exists, and is not a watch ledger"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], status: int, said: str) -> None:
    done, _out, err = run(tmp_path, *arguments)
    assert (done, said in err, "Traceback" in err) == (status, True, False), err
    # No command has started.
    assert not (tmp_path / "started").exists()


def test_the_default_ledger_is_no_link(tmp_path: Path) -> None:
    """Others may know its name, and link it to a file of this user's."""
    with sleeper() as pid:
        (tmp_path / f"watch-{pid}.jsonl").symlink_to(tmp_path / "planted")
        status, _out, err = run(tmp_path, "watch", str(pid))
        assert (status, "a link, not a regular file" in err) == (3, True)
        assert not (tmp_path / "planted").exists()
        # Nor a second name of another file.
        (tmp_path / f"watch-{pid}.jsonl").unlink()
        (tmp_path / "mine").touch()
        (tmp_path / f"watch-{pid}.jsonl").hardlink_to(tmp_path / "mine")
        status, _out, err = run(tmp_path, "watch", str(pid))
    assert (status, "it has a second name" in err) == (3, True), err
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_forked_worker_writes_nothing(tmp_path: Path) -> None:
    script = (
        "import os\nfrom pytest_leakcheck.watch.training import Watcher\n"
        "watcher = Watcher('a.jsonl', interval=0.0)\nwatcher.step()\n"
        "if not os.fork():\n    watcher.step(); watcher.close(); os._exit(0)\n"
        "os.wait(); watcher.step(); watcher.close(); watcher.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.count(" samples, step 2") == 1
    (history,) = read_histories(tmp_path / "a.jsonl")
    assert history.samples == 3


def test_a_forked_worker_of_a_watched_command_counts_no_steps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\nfrom pytest_leakcheck.watch.training import Watcher\n"
        "watcher = Watcher()\nwatcher.step(); watcher.step()\n"
        "if not os.fork():\n    for _ in range(50): watcher.step()\n    os._exit(0)\n"
        "os.wait(); time.sleep(2.5)\n"
    )
    status, _out, err = run(tmp_path, "watch", "--interval", "0.2", "--", sys.executable, str(script))
    assert status == 0, err
    (ledger,) = tmp_path.glob("watch-*.jsonl")
    (history,) = read_histories(ledger)
    assert history.step == 2
