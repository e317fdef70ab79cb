"""``pytest-leakcheck watch PID`` and ``watch -- COMMAND ...``: follows a tree of processes until it ends or is told to stop."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO

from pytest_leakcheck.exit_codes import CANNOT, WRONG_USE
from pytest_leakcheck.report.json_file import check_writable
from pytest_leakcheck.runner.processes.end_tree import end_tree
from pytest_leakcheck.watch.follower import Following, default_ledger
from pytest_leakcheck.watch.ledger import Ledger
from pytest_leakcheck.watch.live_table import Lines, Screen, live_table
from pytest_leakcheck.watch.process_tree import WatchError
from pytest_leakcheck.watch.status_text import last_lines
from pytest_leakcheck.watch.step_counter import VARIABLE, make_board

# A shell's word for a command that was not found, and for one that may not be run.
_NOT_FOUND: Final = 127
_NOT_RUN: Final = 126
# After Ctrl-C a command has so long to end by itself, and then so long after it was asked to, in seconds.
_GRACE: Final = 5.0
_SIGNAL: Final = 128


def add_parser(commands: Any) -> None:
    """Register ``watch`` with the parsers of the shell command."""
    parser = commands.add_parser(
        "watch",
        help="follow a running training: slope, time left, what it holds",
        usage="%(prog)s [options] PID\n       %(prog)s [options] -- COMMAND ...",
        description="Follows a process and all below it until it ends, or until Ctrl-C. The state is shown as it goes, and appended to a file that `pytest-leakcheck report FILE` turns into a page.",
    )
    parser.add_argument("pid", nargs="?", type=int, metavar="PID", help="the process at the top of the tree")
    parser.add_argument("--interval", type=_positive, default=1.0, metavar="S", help="seconds between samples (1)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="append to this file (watch-PID.jsonl)")
    parser.add_argument(
        "--refresh",
        type=_positive,
        metavar="S",
        help="redraw the table so often; by default as often as 0.1 %% of a core allow, and once in two minutes",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Watch. Returns the exit status: that of the command, or 0, 2 for wrong use, 3 where it cannot be done."""
    if (given.pid is None) == (not given.to_start):
        print("pytest-leakcheck watch: give it either a PID or -- and a COMMAND", file=sys.stderr)
        return WRONG_USE
    try:
        if given.pid is not None:
            return _watch_process(given)
        return _watch_command(given)
    except (WatchError, OSError) as error:
        print(f"pytest-leakcheck watch: {error}", file=sys.stderr)
        return CANNOT


def _watch_process(given: argparse.Namespace) -> int:
    path = given.ledger or default_ledger(given.pid)
    with contextlib.closing(Ledger(path)) as ledger:
        following = Following(given.pid, ledger, given.interval)
        with _screen(sys.stdout, given.refresh) as screen:
            _follow(following, screen, given.interval, lambda: None)
    _print_end(following, path, sys.stdout)
    return 0


def _watch_command(given: argparse.Namespace) -> int:
    if reason := check_writable(given.ledger or default_ledger(os.getpid())):
        raise WatchError(f"{given.ledger or Path.cwd()} {reason}")
    with (
        tempfile.TemporaryDirectory(prefix="leakcheck-") as folder,
        contextlib.closing(make_board(Path(folder, "steps"))) as board,
    ):
        environment = os.environ | {VARIABLE: str(Path(folder, "steps"))}
        try:
            # The command is the user's own.
            process = subprocess.Popen(given.to_start, env=environment)  # noqa: S603
        except OSError as error:
            print(f"pytest-leakcheck watch: {given.to_start[0]}: {error.strerror}", file=sys.stderr)
            return _NOT_RUN if isinstance(error, PermissionError) else _NOT_FOUND
        path = given.ledger or default_ledger(process.pid)
        try:
            with contextlib.closing(Ledger(path)) as ledger:
                following = Following(process.pid, ledger, given.interval)
                # On a terminal the command writes, too, and a table would be torn by that.
                _follow(following, Lines(sys.stderr), given.interval, lambda: board.iteration or None, process)
            _print_end(following, path, sys.stderr)
        except (WatchError, OSError) as error:
            # What cannot be watched is not to be ended for that.
            print(f"pytest-leakcheck watch: {error}; the command goes on", file=sys.stderr)
            process.wait()
        finally:
            _end_command(process)
    return process.returncode if process.returncode >= 0 else _SIGNAL - process.returncode


def _follow(
    following: Following,
    screen: Screen,
    interval: float,
    step: Callable[[], int | None],
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Sample until the root is gone, or Ctrl-C."""
    because = "the process ended"
    due = time.monotonic()
    try:
        while not following.ended:
            following.sample(step())
            screen.show(following.history)
            due = max(due + interval, time.monotonic())
            if _has_ended(process, due - time.monotonic()):
                break
    except KeyboardInterrupt:
        because = "stopped by Ctrl-C"
        if process is not None:
            _end_command(process)
            # Such as a job in the background of a shell, which Ctrl-C does not reach.
            following.kill()
    following.end(because)


def _has_ended(process: subprocess.Popen[bytes] | None, seconds: float) -> bool:
    """Wait so long, if it is not past, or until the command has ended, which is then known at once."""
    if process is None:
        time.sleep(max(0.0, seconds))
        return False
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_command(process: subprocess.Popen[bytes]) -> None:
    """Give the command time to end by itself, since Ctrl-C has reached it too; then end it and what it has started."""
    with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.wait(_GRACE)
    if process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):
            end_tree(process, grace=_GRACE, group=False)


@contextlib.contextmanager
def _screen(out: TextIO, refresh: float | None) -> Iterator[Screen]:
    if not out.isatty() or find_spec("rich") is None:
        if out.isatty():
            print("plain lines; for a live table: pip install 'pytest-leakcheck[report]'", file=out)
        yield Lines(out)
        return
    from rich.console import Console

    with live_table(Console(file=out), refresh) as table:
        yield table


def _print_end(following: Following, path: Path, out: TextIO) -> None:
    print(*last_lines(following.history), sep="\n", file=out)
    print(f"  {following.history.ended}; a page of it: pytest-leakcheck report {path}", file=out, flush=True)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments before ``--``, and the command behind it."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]
