"""Run the shell command ``pytest-leakcheck`` with its subcommands."""
# For the completion of whole shells: PYTHON_ARGCOMPLETE_OK

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.model import CANNOT, INTERRUPTED, WRONG_USE, LeakcheckError
from pytest_leakcheck.model.escaping import printable
from pytest_leakcheck.model.regular_file import FileError

if TYPE_CHECKING:
    from pytest_leakcheck.report.html.page import Page

# 128 + 13, the number of SIGPIPE: the status that a shell reports for a program that writes to a
# closed pipe.
_CLOSED_PIPE: Final = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status; by default, with the arguments of `sys.argv`."""
    if sys.stdout is None:
        # It was closed before this process started.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        # A file may contain what is no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = _run_subcommand(sys.argv[1:] if arguments is None else arguments)
        # Here, and not as the interpreter ends, where an error could only be ignored.
        print(end="", flush=True)
    except KeyboardInterrupt:
        # A subcommand that has more to do on Ctrl-C catches the exception itself.
        print("pytest-leakcheck: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _CLOSED_PIPE
    except LeakcheckError as error:
        print(printable(f"pytest-leakcheck: {error}"), file=sys.stderr)
        return WRONG_USE
    except OSError as error:
        _discard_output()
        named = f"{error.filename}: " if error.filename else ""
        print(printable(f"pytest-leakcheck: {named}{error.strerror or error}"), file=sys.stderr)
        return CANNOT
    return status


def _discard_output() -> None:
    """Lead stdout nowhere if it cannot be written."""
    # Otherwise, the interpreter would fail to write the rest.
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _make_parser() -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser and its subcommands."""
    from leakcheck_incidents.repro import command as repro_command
    from pytest_leakcheck.baseline import command as baseline_command
    from pytest_leakcheck.report import GUIDE, compare_command, explain_command
    from pytest_leakcheck.watch import command as watch_command

    parser = argparse.ArgumentParser(
        prog="pytest-leakcheck",
        description="Reproduce real leaks, watch a running training job, render, compare or explain reports, or list known "
        "leaks. To check tests, run: pytest --leakcheck",
        epilog=f"To fix a leak: {GUIDE}",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    repro_command.add_parser(commands)
    watch_command.add_parser(commands)
    _add_report_parser(commands)
    compare_command.add_parser(commands)
    explain_command.add_parser(commands)
    baseline_command.add_parser(commands)
    return parser, commands


def _run_subcommand(arguments: Sequence[str]) -> int:
    parser, commands = _make_parser()
    if "_ARGCOMPLETE" in os.environ:
        # A shell asks for completions of its command line.
        import argcomplete

        argcomplete.autocomplete(parser)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    to_start = list(arguments[at + 1 :])
    given, unknown = parser.parse_known_args(arguments[:at], argparse.Namespace(to_start=to_start))
    if given.version:
        # Imported only here: it takes a third of the time in which the other commands start.
        from importlib.metadata import version

        print(f"{parser.prog} {version(parser.prog)}")
        return 0
    if not given.command:
        if unknown or to_start:
            parser.error(
                f"no command before {' '.join((*unknown, *to_start))}: repro, watch, report, compare, explain or baseline"
            )
        parser.print_help()
        return 0
    if to_start and given.command != "watch":
        unknown += ["--", *to_start]
    if unknown:
        # The parser of the subcommand reports unknown arguments, because it also prints the usage
        # of the subcommand.
        commands.choices[given.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return int(given.run(given))


def _add_report_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write an HTML page from a watch ledger or a --leakcheck-json report",
        description="Writes FILE.html, which loads nothing from the network.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="watch-PID.jsonl, or a file of --leakcheck-json"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: the folder of FILE)"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open it in a browser")
    parser.add_argument(
        "--no-source", action="store_true", help="leave lines of source out of the page"
    )
    parser.set_defaults(run=_write_report)


def _write_report(given: argparse.Namespace) -> int:
    """Write a page; return 2 if the file is unreadable or unknown, or the page is unwritable."""
    from pytest_leakcheck.report.json_file import fitting

    try:
        with fitting():
            page = _read_page(given.file, source=not given.no_source)
            from pytest_leakcheck.report.html.page import write_page

            html = write_page(page, given.out or given.file.parent, given.file.stem)
    except LeakcheckError as error:
        # A `FileError` begins with the name of the file.
        named = "" if isinstance(error, FileError) else f"{given.file}: "
        print(printable(f"pytest-leakcheck report: {named}{error}"), file=sys.stderr)
        return WRONG_USE
    except OSError as error:
        print(
            printable(f"pytest-leakcheck report: {given.file}: {error.strerror or error}"),
            file=sys.stderr,
        )
        return WRONG_USE
    print(printable(str(html)))
    if not given.no_open and sys.stdout.isatty():
        webbrowser.open(html.resolve().as_uri())
    return 0


def _read_page(path: Path, *, source: bool) -> Page:
    from pytest_leakcheck.report.json_file import is_report
    from pytest_leakcheck.watch.history import is_ledger

    if not is_report(path) and is_ledger(path):
        from pytest_leakcheck.watch.status_text import page_of_ledger

        return page_of_ledger(path)
    from pytest_leakcheck.report.html.findings_page import page_of_report
    from pytest_leakcheck.report.json_file import read

    report = read(path)
    if report.notice:
        print(printable(f"pytest-leakcheck report: {path}: {report.notice}"), file=sys.stderr)
    return page_of_report(report, f"Leaks in {path.name}", source=source, folder=Path.cwd())
