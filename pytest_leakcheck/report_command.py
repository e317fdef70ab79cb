"""``pytest-leakcheck report FILE``: write the page of a report of findings, or of a watch's ledger."""

from __future__ import annotations

import argparse
import json
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_leakcheck.exit_codes import CANNOT, WRONG_USE
from pytest_leakcheck.report.html.view_model import missing_for_page

if TYPE_CHECKING:
    from pytest_leakcheck.report.html.view_model import Page

# A ledger's first line says so; what pytest wrote begins otherwise, on a line of its own.
_LEDGER: Final = '"watch":'


def add_parser(commands: Any) -> None:
    """Register ``report`` with the parsers of the shell command."""
    parser = commands.add_parser(
        "report",
        help="make a page of a watch's ledger, or of what --leakcheck-json wrote",
        description="Writes FILE.html, which fetches nothing.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="watch-PID.jsonl, or the file of --leakcheck-json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write there (the folder of FILE)")
    parser.add_argument("--no-open", action="store_true", help="do not show it in a browser")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Make the page. Returns the exit status: 0, 2 where the file is not one that it knows, 3 where an extra is missing."""
    if missing := missing_for_page():
        print(f"pytest-leakcheck report: {missing}", file=sys.stderr)
        return CANNOT
    from pytest_leakcheck.report.html.render import write_page

    try:
        html = write_page(_read(given.file), given.out or given.file.parent, given.file.stem)
    except (OSError, ValueError) as error:
        print(f"pytest-leakcheck report: {given.file}: {error}", file=sys.stderr)
        return WRONG_USE
    print(html)
    if not given.no_open and sys.stdout.isatty():
        webbrowser.open(html.resolve().as_uri())
    return 0


def _read(path: Path) -> Page:
    from pytest_leakcheck.report.html.findings_page import page_of_findings
    from pytest_leakcheck.watch.ledger_page import page_of_ledger

    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    if _LEDGER in first:
        return page_of_ledger(path)
    return page_of_findings(json.loads(path.read_text(encoding="utf-8")), path.name)
