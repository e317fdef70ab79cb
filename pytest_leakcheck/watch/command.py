"""Implement ``pytest-leakcheck watch``: sample a process or a command, and its descendants, until it ends or Ctrl-C."""

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

from pytest_leakcheck.model.exit_codes import CANNOT, WRONG_USE
from pytest_leakcheck.runner.processes.end_tree import end_tree
from pytest_leakcheck.watch.follower import Following, default_ledger
from pytest_leakcheck.watch.ledger import Ledger
from pytest_leakcheck.watch.live_table import Lines, Screen, live_table
from pytest_leakcheck.watch.process_tree import WatchError
from pytest_leakcheck.watch.status_text import last_lines
from pytest_leakcheck.watch.step_counter import VARIABLE, make_board

# Exit statuses with which a shell reports a command that was not found, and one that cannot be executed.
_NOT_FOUND_STATUS: Final = 127
_NOT_EXECUTABLE_STATUS: Final = 126
# After Ctrl-C, the command gets this long to end by itself, and then this long again between SIGTERM and SIGKILL.
_GRACE_SECONDS: Final = 5.0
# The exit status of a command that a signal ended is this plus the number of the signal, as in a shell.
_SIGNAL_STATUS_BASE: Final = 128


def add_parser(commands: Any) -> None:
    """Add the subcommand ``watch`` to the argument parser of ``pytest-leakcheck``."""
    parser = commands.add_parser(
        "watch",
        help="watch a running training job: growth, time until a limit, new descriptors",
        usage="%(prog)s [options] PID\n       %(prog)s [options] -- COMMAND ...",
        description="Watches a process and its descendants until it ends, or until Ctrl-C. Shows the state while it runs, and appends it to a file that `pytest-leakcheck report FILE` turns into a page.",
    )
    parser.add_argument("pid", nargs="?", type=int, metavar="PID", help="the root process")
    parser.add_argument(
        "--interval", type=_positive_seconds, default=1.0, metavar="S", help="seconds between samples (default: 1)"
    )
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="append to this file (default: watch-PID.jsonl)")
    parser.add_argument(
        "--refresh",
        type=_positive_seconds,
        metavar="S",
        help="seconds between redraws of the table (default: as often as 0.1 %% of a core allows, at least every two minutes)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Watch a process or a command, and return the exit status.

    It is 0 for a PID, else that of the command; 2 for wrong use; 3 if there is no process with this PID, or the ledger
    (the file of events) cannot be written at the start; 126 or 127 if the command cannot be started.
    """
    if (given.pid is None) == (not given.to_start):
        print("pytest-leakcheck watch: give either a PID or -- and a COMMAND", file=sys.stderr)
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
        with _open_screen(sys.stdout, given.refresh) as screen:
            _follow(following, screen, given.interval, lambda: None)
    _print_end(following, path, sys.stdout)
    return 0


def _watch_command(given: argparse.Namespace) -> int:
    folder = (given.ledger or default_ledger(os.getpid())).parent
    if not os.access(folder, os.W_OK):
        raise WatchError(f"--ledger={given.ledger}: no file can be created in {folder.resolve()}: name another folder")
    with (
        tempfile.TemporaryDirectory(prefix="leakcheck-") as folder,
        contextlib.closing(make_board(Path(folder, "steps"))) as board,
    ):
        environment = os.environ | {VARIABLE: str(Path(folder, "steps"))}
        try:
            process = subprocess.Popen(given.to_start, env=environment)  # noqa: S603 - the command is the user's own
        except OSError as error:
            print(f"pytest-leakcheck watch: {given.to_start[0]}: {error.strerror}", file=sys.stderr)
            return _NOT_EXECUTABLE_STATUS if isinstance(error, PermissionError) else _NOT_FOUND_STATUS
        path = given.ledger or default_ledger(process.pid)
        try:
            with contextlib.closing(Ledger(path)) as ledger:
                following = Following(process.pid, ledger, given.interval)
                # Print plain lines even on a terminal, because output of the command would break up a live table.
                _follow(following, Lines(sys.stderr), given.interval, lambda: board.iteration or None, process)
            _print_end(following, path, sys.stderr)
        except (WatchError, OSError) as error:
            # An error of the watch must not end the command.
            print(f"pytest-leakcheck watch: {error}; the command continues", file=sys.stderr)
            process.wait()
        finally:
            _end_command(process)
    return process.returncode if process.returncode >= 0 else _SIGNAL_STATUS_BASE - process.returncode


def _follow(
    following: Following,
    screen: Screen,
    interval: float,
    step: Callable[[], int | None],
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Sample until the root process ends, or until Ctrl-C, which also ends the command and all that it has started."""
    because = "the process ended"
    due = time.monotonic()
    try:
        while not following.ended:
            following.sample(step())
            screen.show(following.history)
            due = max(due + interval, time.monotonic())
            if _wait_for_end(process, due - time.monotonic()):
                break
    except KeyboardInterrupt:
        because = "stopped by Ctrl-C"
        if process is not None:
            _end_command(process)
            # This reaches processes that Ctrl-C does not, such as a background job of a shell.
            following.kill()
    following.end(because)


def _wait_for_end(process: subprocess.Popen[bytes] | None, seconds: float) -> bool:
    """Wait for the command for a limited time, and return whether it has ended; without a command, only wait."""
    if process is None:
        time.sleep(max(0.0, seconds))
        return False
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_command(process: subprocess.Popen[bytes]) -> None:
    """Wait for the command, which Ctrl-C reaches too; after a grace period, end it and its descendants."""
    with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    if process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):
            end_tree(process, grace=_GRACE_SECONDS, group=False)


@contextlib.contextmanager
def _open_screen(out: TextIO, refresh: float | None) -> Iterator[Screen]:
    if not out.isatty() or find_spec("rich") is None:
        if out.isatty():
            print(
                "progress is printed as plain lines; for a live table: pip install 'pytest-leakcheck[report]'", file=out
            )
        yield Lines(out)
        return
    from rich.console import Console

    with live_table(Console(file=out), refresh) as table:
        yield table


def _print_end(following: Following, path: Path, out: TextIO) -> None:
    print(*last_lines(following.history), sep="\n", file=out)
    print(f"  {following.history.ended}; for an HTML page: pytest-leakcheck report {path}", file=out, flush=True)


def _positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return value


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments at the first ``--``; return the arguments before it, and the command after it."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]
