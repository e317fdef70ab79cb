"""Implement ``pytest-leakcheck explain ID [REPORT]``: one finding of a JSON report, in full."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.finding import RED, Finding, key_of_cause
from pytest_leakcheck.model.resources import with_rows_of
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.finding_text import block, place, row
from pytest_leakcheck.report.glyphs import printable, shown_in
from pytest_leakcheck.report.json_file import ADVICE, ReportError, Session, fitting, read

_REPORT: Final = "leaks.json"
# Tests, or other findings, that a line lists.
_MOST_LISTED: Final = 10


def add_parser(commands: Any) -> None:
    """Add the parser of the subcommand."""
    parser = commands.add_parser(
        "explain",
        help="print a finding of a JSON report: its cause, what to do, and the command to run next",
        description="Prints the worst finding of a cause, from a file of --leakcheck-json.",
        epilog=f"To fix a leak: {GUIDE}",
    )
    parser.add_argument(
        "id", metavar="ID", help="the finding, or how it begins: the terminal shows six digits"
    )
    parser.add_argument(
        "report",
        type=Path,
        nargs="?",
        default=Path(_REPORT),
        metavar="REPORT",
        help=f"a file of --leakcheck-json (default: {_REPORT})",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the finding and return 0; raise `InputError` if there is none, or no report."""
    path: Path = given.report
    try:
        report = read(path)
        with fitting(), with_rows_of(report.resources):
            text = _explain(_find(report.findings, given.id, path), report.session or Session())
    except ReportError as error:
        raise InputError(f"{path}: {error}") from None
    except FileNotFoundError as error:
        raise InputError(f"{path}: {error.strerror}; name a report, or {ADVICE}") from None
    if report.notice:
        print(printable(f"pytest-leakcheck explain: {path}: {report.notice}"), file=sys.stderr)
    print(shown_in(text, sys.stdout.encoding))
    return 0


def _explain(findings: Sequence[Finding], session: Session) -> str:
    # It imports what makes pages, which other commands do not need.
    from pytest_leakcheck.report.html.findings_page import rerun_command

    worst = min(findings, key=lambda one: one.colour != "red")
    tests = list(dict.fromkeys(one.test for one in findings))
    lines = (
        block(worst, command=rerun_command(worst, session)),
        row("tests", _listed(tests)) if len(tests) > 1 else "",
        row("advice", advice) if (advice := _advise(worst)) else "",
        row("guide", GUIDE),
    )
    return "\n".join(filter(None, lines))


def _advise(finding: Finding) -> str:
    """Return what the kind and the cause of a red finding imply; empty if it has advice itself."""
    culprit, outcome = finding.culprit, finding.verdict.outcome
    if outcome not in RED or finding.verdict.advice or (culprit is not None and culprit.hint):
        return ""
    if outcome == "over_budget":
        return "lower what is held at once, or raise the budget if that much is meant to be held"
    if outcome == "unclosed":
        return (
            "close it where its use ends, by `with` or in `finally`, not by the garbage collector"
        )
    site, owner = finding.site, finding.owner
    ways = (
        f"release what {place(site)} makes" if site is not None else "",
        f"remove it from {owner.name or owner.root}" if owner is not None else "",
    )
    return " or ".join(filter(None, ways)) or "find the line that makes it"


def _find(findings: Sequence[Finding], begin: str, path: Path) -> list[Finding]:
    """Return the findings of the one cause whose identifier begins so, or raise `InputError`."""
    causes: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.colour != "green":
            causes.setdefault(key_of_cause(finding)[0], []).append(finding)
    fitting = [one for one in causes if one.startswith(begin)]
    if len(fitting) == 1:
        return causes[fitting[0]]
    if fitting:
        what = f"{len(fitting)} findings of {path} begin so: {_listed(fitting)}; give more of one"
    elif causes:
        names = _listed(list(map(short_id, causes)))
        what = f"no finding of {path} begins so, but {names} do; give one of them"
    else:
        what = f"{path} has no finding, because all judged tests are green; name another report"
    raise InputError(f"ID {begin!r} (command line): {what}")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
