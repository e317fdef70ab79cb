"""Run the subcommand ``pytest-leakcheck baseline``: list the known leaks, or join files of them."""

from __future__ import annotations

import argparse
import re
import sys
from json import dumps
from pathlib import Path
from typing import Any

from pytest_leakcheck.baseline.known_leaks import BaselineError, merge, read, to_text
from pytest_leakcheck.model import WRONG_USE
from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.escaping import printable
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.model.units import format_count, format_rate


def add_parser(commands: Any) -> None:
    """Add the parser of the subcommand."""
    parser = commands.add_parser(
        "baseline", help="list the known leaks of a suite, or join files of them"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print a line for each known leak")
    listing.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path("leakcheck-baseline.json"),
        help="the file of known leaks (default: leakcheck-baseline.json)",
    )
    joining = actions.add_parser(
        "merge", help="print a file with the entries of several, such as those of a CI matrix"
    )
    joining.add_argument(
        "files", type=Path, nargs="+", metavar="file", help="a file; the first has the last word"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the subcommand and return its exit status: 2 if a file is not usable."""
    try:
        if arguments.action == "merge":
            text = to_text(merge(read(path) for path in arguments.files))
            # As JSON escapes it, since the output may be a terminal.
            print(
                re.sub(
                    r"[^\n -~]",
                    lambda one: one[0] if one[0].isprintable() else dumps(one[0])[1:-1],
                    text,
                ),
                end="",
            )
            return 0
        baseline = read(arguments.file)
    except BaselineError as error:
        print(printable(f"pytest-leakcheck baseline: {error}"), file=sys.stderr)
        return WRONG_USE
    for leak in baseline.known:
        # A counter of the project's own is known only while its tests run.
        known = RESOURCES.get(leak.resource)
        rate = format_rate(leak.rate, known.unit if known is not None else "count")
        where = leak.owner or leak.site or "cause unknown"
        parts = (
            short_id(leak.finding),
            f"{leak.resource} {rate}",
            where,
            format_count(len(leak.tests), "test"),
        )
        notes = (
            leak.package,
            leak.reason,
            leak.link,
            f"expires {leak.expires}" if leak.expires else "",
        )
        print(printable("  ".join((*parts, *filter(None, notes)))))
    return 0
