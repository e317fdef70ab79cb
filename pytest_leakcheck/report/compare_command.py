"""Implement ``pytest-leakcheck compare OLD NEW``: what two JSON reports (``--leakcheck-json``) differ in."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.baseline.compare import Difference, compare, why_not_comparable
from pytest_leakcheck.model.cause import format_tests
from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.exit_codes import WRONG_USE
from pytest_leakcheck.model.resources import find_resource, known
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.glyphs import printable
from pytest_leakcheck.report.json_file import Report, ReportError, read

# The exit status if a leak is new or has grown.
_WORSE: Final = 1


def add_parser(commands: Any) -> None:
    """Add the parser of the subcommand."""
    parser = commands.add_parser(
        "compare",
        help="print what is new, grown and fixed between two reports",
        description="Compares two files of --leakcheck-json by cause. The exit status is 1 if a leak is new or has grown.",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="the report of the earlier session")
    parser.add_argument("new", type=Path, metavar="NEW", help="the report of the later session")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the differences and return the exit status: 2 if a file is not a report."""
    old, new = _read(given.old), _read(given.new)
    if old is None or new is None:
        return WRONG_USE
    if differs := why_not_comparable(old.findings, new.findings):
        print(f"not the same conditions: {differs}")
    with ExitStack() as stack:
        for report in (old, new):
            stack.enter_context(known(report.resources))
        differences = compare(old.findings, new.findings)
        for one in differences:
            print(printable(_line(one)))
    if not differences:
        print("no leaks in either report")
    return _WORSE if any(one.change in ("new", "grown") for one in differences) else 0


def _read(path: Path) -> Report | None:
    """Read a report; without one, say so and return None."""
    report: Report | None = None
    try:
        report = read(path)
        what: object = report.notice
    except (OSError, ReportError) as error:
        what = (isinstance(error, OSError) and error.strerror) or error
    if what:
        print(f"pytest-leakcheck compare: {path}: {what}", file=sys.stderr)
    return report


def _line(one: Difference) -> str:
    cause, unit = one.cause, find_resource(one.cause.resource).unit
    rate = format_rate(cause.rate, unit)
    if one.change == "grown":
        rate = f"was {format_rate(one.was, unit)}, is {rate}"
    where = cause.owner or cause.site or "cause unknown"
    tests = format_tests(cause.tests)
    return f"{one.change:<12}  {short_id(cause.finding)}  {cause.resource} {rate}  {where}  {tests}"
