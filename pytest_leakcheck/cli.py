"""Run the shell command ``pytest-leakcheck`` with its subcommands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pytest_leakcheck.model import INTERRUPTED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; without arguments, those of `sys.argv` are used."""
    try:
        return _run_subcommand(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # A subcommand that has more to do on Ctrl-C catches the exception itself.
        print("pytest-leakcheck: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run_subcommand(arguments: Sequence[str]) -> int:
    from leakcheck_incidents.repro import command as repro_command
    from pytest_leakcheck import report_command
    from pytest_leakcheck.baseline import command as baseline_command
    from pytest_leakcheck.report import compare_command
    from pytest_leakcheck.watch import command as watch_command

    parser = argparse.ArgumentParser(
        prog="pytest-leakcheck",
        description="Reproduce real leaks, watch a running training job, render or compare reports, or list known leaks. "
        "To check tests, run: pytest --leakcheck",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in (repro_command, watch_command, report_command, compare_command, baseline_command):
        command.add_parser(commands)
    at = list(arguments).index("--") if "--" in arguments else len(arguments)
    words, to_start = arguments[:at], list(arguments[at + 1 :])
    given, unknown = parser.parse_known_args(words, argparse.Namespace(to_start=to_start))
    if given.version:
        # Imported only here: it takes a third of the time in which the other commands start.
        from importlib.metadata import version

        print(f"{parser.prog} {version(parser.prog)}")
        return 0
    if given.command is None:
        if unknown or to_start:
            parser.error(
                f"no command before {' '.join((*unknown, *to_start))}: repro, watch, report, compare or baseline"
            )
        parser.print_help()
        return 0
    if to_start and given.command != "watch":
        unknown += ["--", *to_start]
    if unknown:
        # The parser of the subcommand reports unknown arguments, because it also prints the usage of the subcommand.
        commands.choices[given.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    status: int = given.run(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
