"""The shell command: ``repro`` runs a bundled incident, ``watch`` follows a process, ``report`` makes a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_leakcheck.exit_codes import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status."""
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # Where a command makes more of it than that, it does so itself.
        print("pytest-leakcheck: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: Sequence[str]) -> int:
    from pytest_leakcheck import report_command
    from pytest_leakcheck.repro import command as repro_command
    from pytest_leakcheck.watch import command as watch_command

    parser = argparse.ArgumentParser(
        prog="pytest-leakcheck", description="Leaks of real trainings, to see for yourself."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (repro_command, watch_command, report_command):
        command.add_parser(commands)
    words, to_start = watch_command.split_command(arguments)
    given, unknown = parser.parse_known_args(words, argparse.Namespace(to_start=to_start))
    if to_start and given.command != "watch":
        unknown += ["--", *to_start]
    if unknown:
        # Said by the command that they were meant for, with how it is used.
        commands.choices[given.command].error(f"it takes no {' '.join(unknown)}")
    status: int = given.run(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
