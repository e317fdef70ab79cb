"""Run ``pytest-leakcheck watch``: sample a process tree or command until its end or Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TextIO, TypeAlias

from pytest_leakcheck.model import CANNOT, WRONG_USE
from pytest_leakcheck.model.escaping import printable
from pytest_leakcheck.probes.foreign_files import private
from pytest_leakcheck.probes.own_folder import temporary_folder
from pytest_leakcheck.runner.processes.supervisor import Board, BoardView, end_tree
from pytest_leakcheck.watch.follower import Following
from pytest_leakcheck.watch.history import History, open_ledger
from pytest_leakcheck.watch.status_text import lines
from pytest_leakcheck.watch.training import STEPS_VARIABLE

# After Ctrl-C, the command gets this long to end by itself, and then this long again between
# SIGTERM and SIGKILL.
_GRACE_SECONDS: Final = 5.0
# What draws the state of a watch, and the seconds to the next time, from the duration of the watch
# in seconds.
Screen: TypeAlias = tuple[Callable[[History], None], Callable[[float], float]]


def add_parser(commands: Any) -> None:
    """Add the subcommand ``watch`` to the argument parser of ``pytest-leakcheck``."""
    parser = commands.add_parser(
        "watch",
        help="watch a running training job: growth, time until a limit, new descriptors",
        usage="%(prog)s [options] PID\n       %(prog)s [options] -- COMMAND ...",
        description="Watches a process and its descendants until it ends, or until Ctrl-C. Shows the state while it "
        "runs, and appends it to a file that `pytest-leakcheck report FILE` turns into a page.",
    )
    parser.add_argument("pid", nargs="?", type=_process_id, metavar="PID", help="the root process")
    for option, seconds, what in (
        ("--interval", 1.0, "samples"),
        ("--refresh", 10.0, "redraws of the table"),
    ):
        text = f"seconds between {what} (default: {seconds:g})"
        parser.add_argument(option, type=_positive_seconds, default=seconds, metavar="S", help=text)
    parser.add_argument(
        "--ledger", type=Path, metavar="FILE", help="append to this file (default: watch-PID.jsonl)"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Watch a process or a command, and return the exit status.

    It is 0 for a PID, else that of the command, as in a shell: 126 or 127 if it cannot be started,
    and 128 + N after a signal. 2 for wrong use; 3 if there is no such process, or the ledger cannot
    be written at the start.
    """
    if (given.pid is None) == (not given.to_start):
        print("pytest-leakcheck watch: give either a PID or -- and a COMMAND", file=sys.stderr)
        return WRONG_USE
    try:
        if given.to_start:
            return _watch_command(given)
        following = Following(given.pid, given.ledger, given.interval)
    except OSError as error:
        print(printable(f"pytest-leakcheck watch: {error}"), file=sys.stderr)
        return CANNOT
    with _open_screen(given.refresh) as screen:
        _follow(following, screen)
    _print_end(following, sys.stdout)
    return 0


def _watch_command(given: argparse.Namespace) -> int:
    folder = given.ledger.parent if given.ledger else Path()
    if not os.access(folder, os.W_OK):
        raise OSError(
            f"--ledger={given.ledger}: no file can be created in {folder.resolve()}: name another folder"
        )
    if given.ledger:
        # Before the command starts.
        open_ledger(given.ledger).close()
    with temporary_folder() as own, open(own / "steps", "xb", opener=private) as steps:
        steps.write(bytes(Board.SIZE))
        steps.flush()
        environment = os.environ | {STEPS_VARIABLE: steps.name}
        with contextlib.closing(BoardView(Path(steps.name))) as board:
            try:
                process = subprocess.Popen(given.to_start, env=environment)  # noqa: S603 - the command is the user's own
            except OSError as error:
                print(
                    printable(f"pytest-leakcheck watch: {given.to_start[0]}: {error.strerror}"),
                    file=sys.stderr,
                )
                return 126 if isinstance(error, PermissionError) else 127
            try:
                following = Following(process.pid, given.ledger, given.interval)
                # Plain lines even on a terminal, because output of the command would break up a
                # live table.
                _follow(
                    following, _plain_lines(sys.stderr), lambda: board.iteration or None, process
                )
                _print_end(following, sys.stderr)
            except OSError as error:
                # An error of the watch must not end the command.
                print(
                    printable(f"pytest-leakcheck watch: {error}; the command continues"),
                    file=sys.stderr,
                )
                process.wait()
            finally:
                _end_command(process)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _follow(
    following: Following,
    screen: Screen,
    step: Callable[[], int | None] = lambda: None,
    process: subprocess.Popen[bytes] | None = None,
) -> None:
    """Sample until the root ends, or Ctrl-C, which also ends the command and all it has started."""
    because, due, history = "the process ended", time.monotonic(), following.history
    draw, wait = screen
    draw_at = wait(0)
    try:
        while not following.tree.ended and (process is None or process.returncode is None):
            following.sample(step())
            if (seconds := history.last - history.first) >= draw_at:
                draw(history)
                draw_at = seconds + wait(seconds)
            due = max(due + history.start.interval, time.monotonic())
            if process is None:
                time.sleep(max(0.0, due - time.monotonic()))
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(due - time.monotonic())
    except KeyboardInterrupt:
        because = "stopped by Ctrl-C"
        if process is not None:
            _end_command(process)
            # This reaches processes that Ctrl-C does not, such as a background job of a shell.
            following.tree.kill()
    following.end(because)


def _end_command(process: subprocess.Popen[bytes]) -> None:
    """Wait for the command, which Ctrl-C reaches too; after a grace period, end its whole tree."""
    with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    if process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):
            end_tree(process, grace=_GRACE_SECONDS, group=False)


def _plain_lines(out: TextIO) -> Screen:
    """Draw lines after 5 s, then at intervals that grow by half each time, up to ten minutes."""

    def draw(history: History) -> None:
        print(*lines(history), sep="\n", file=out, flush=True)

    return draw, lambda seconds: max(5.0, min(seconds / 2, 600.0))


@contextlib.contextmanager
def _open_screen(refresh: float) -> Iterator[Screen]:
    """Open a table on stdout, erased at the end; plain lines without rich or a terminal."""
    if not sys.stdout.isatty() or find_spec("rich") is None:
        yield _plain_lines(sys.stdout)
        return
    from rich.live import Live
    from rich.text import Text

    def draw(history: History) -> None:
        texts = [
            Text(line.text, style="bold red" if line.runs_out else "") for line in lines(history)
        ]
        live.update(Text("\n").join(texts), refresh=True)

    # No auto-refresh: its thread would cost more than the watch.
    with Live(auto_refresh=False, transient=True) as live:
        yield draw, lambda seconds: refresh if seconds else 0.0


def _print_end(following: Following, out: TextIO) -> None:
    page = (
        f"  {following.history.ended}; for an HTML page: pytest-leakcheck report {following.path}"
    )
    print(*lines(following.history), page, sep="\n", file=out, flush=True)


def _process_id(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text}: must be the number of a process, such as 4711")
    return int(text)


def _positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return value
