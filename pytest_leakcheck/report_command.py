"""Implement ``pytest-leakcheck report FILE``: write a page from a JSON report or a ledger (the events of ``watch``)."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.model import WRONG_USE
from pytest_leakcheck.report.json_file import read

if TYPE_CHECKING:
    from pytest_leakcheck.report.html.view_model import Page

# The first line of a ledger contains this key, that of a report does not.
_LEDGER_KEY: Final = '"watch":'


def add_parser(commands: Any) -> None:
    """Add the parser of the subcommand."""
    parser = commands.add_parser(
        "report",
        help="write an HTML page from a watch ledger or a --leakcheck-json report",
        description="Writes FILE.html, which loads nothing from the network.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="watch-PID.jsonl, or a file of --leakcheck-json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (default: the folder of FILE)")
    parser.add_argument("--no-open", action="store_true", help="do not open it in a browser")
    parser.add_argument("--no-source", action="store_true", help="leave lines of source out of the page")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Write the page; return 0, or 2 if the file is unreadable or of an unknown kind, or the page cannot be written."""
    try:
        page = _read_page(given.file, source=not given.no_source)
        from pytest_leakcheck.report.html.render import write_page

        html = write_page(page, given.out or given.file.parent, given.file.stem)
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        what = (isinstance(error, OSError) and error.strerror) or str(error)
        if isinstance(error, OverflowError):
            what = "damaged: a number in it is too large"
        elif isinstance(error, RecursionError):
            what = "damaged: its values are nested too deeply"
        print(f"pytest-leakcheck report: {given.file}: {what}", file=sys.stderr)
        return WRONG_USE
    print(html)
    if not given.no_open and sys.stdout.isatty():
        webbrowser.open(html.resolve().as_uri())
    return 0


def _read_page(path: Path, *, source: bool) -> Page:
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    if _LEDGER_KEY in first:
        from pytest_leakcheck.watch.status_text import page_of_ledger

        return page_of_ledger(path)
    from pytest_leakcheck.report.html.findings_page import page_of_report

    report = read(path)
    if report.notice:
        print(f"pytest-leakcheck report: {path}: {report.notice}", file=sys.stderr)
    return page_of_report(report, path.name, source=source)
