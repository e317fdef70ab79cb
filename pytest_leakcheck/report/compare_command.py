"""Implement ``pytest-leakcheck compare OLD NEW``: how two JSON reports differ, by cause."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from pytest_leakcheck.baseline.known_leaks import (
    KnownLeak,
    KnownLeaks,
    Match,
    Observed,
    baseline_of,
    find_fixed,
)
from pytest_leakcheck.model import WRONG_USE
from pytest_leakcheck.model.culprit import short_id
from pytest_leakcheck.model.finding import RED, Finding, format_tests
from pytest_leakcheck.model.resources import find_resource, with_rows_of
from pytest_leakcheck.model.units import format_rate
from pytest_leakcheck.report.glyphs import printable
from pytest_leakcheck.report.json_file import Report, ReportError, read

_WORST_FIRST: Final = ("new", "grown", "same", "fixed", "not measured")


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
    """Print the differences; return 1 if a leak is new or has grown, 2 if a file is no report."""
    old, new = _read(given.old), _read(given.new)
    if old is None or new is None:
        return WRONG_USE
    before, now = (_facts(report.findings) for report in (old, new))
    if differs := [
        f"{name}: {before[name]} and {now[name]}"
        for name in before
        if now.get(name) != before[name] and now
    ]:
        print(printable(f"not the same conditions: {'; '.join(differs)}"))
    with ExitStack() as stack:
        for report in (old, new):
            stack.enter_context(with_rows_of(report.resources))
        differences = list(_compare(old.findings, new.findings))
        for change, cause, was in sorted(
            differences, key=lambda one: (_WORST_FIRST.index(one[0]), one[1].finding)
        ):
            print(printable(_line(change, cause, was)))
    if not differences:
        print("no leaks in either report")
    return int(any(change in ("new", "grown") for change, _cause, _was in differences))


def _read(path: Path) -> Report | None:
    """Read a report; without one, say so and return None."""
    report: Report | None = None
    try:
        report = read(path)
        what: object = report.notice
    except (OSError, ReportError) as error:
        what = (isinstance(error, OSError) and error.strerror) or error
    if what:
        print(printable(f"pytest-leakcheck compare: {path}: {what}"), file=sys.stderr)
    return report


def _compare(
    earlier: Sequence[Finding], later: Sequence[Finding]
) -> Iterator[tuple[str, KnownLeak, float]]:
    """Yield each change with its cause, and the rate in the earlier session, 0 for a new cause."""
    # A cause is fixed if each test that showed it was judged again, is ok, and would have shown it.
    # The cause is that of the earlier session if it is fixed or was not measured again.
    before, now = baseline_of(earlier), baseline_of(later)
    leaks, observed = (
        KnownLeaks(before, ""),
        Observed([one for one in later if one.verdict.outcome in RED]),
    )
    matches: dict[str, Match] = {}
    for finding in observed.leaks:
        match = leaks.match(finding)
        # Of several tests, "grown" counts before "known", and that before "new".
        if match.state < matches.setdefault(finding.fingerprint, match).state:
            matches[finding.fingerprint] = match
    # The earlier causes that were found again: one of an uncertain name may be several now.
    again = set()
    for cause in now.known:
        match = matches[cause.finding]
        if match.leak is None:
            yield "new", cause, 0.0
        else:
            again.add(match.leak.finding)
            yield "grown" if match.state == "grown" else "same", cause, match.leak.rate
    for finding in later:
        observed.add_floors(finding, leaks)
    gone = {leak.finding for leak in find_fixed(before, observed)}
    for leak in before.known:
        if leak.finding not in again:
            yield "fixed" if leak.finding in gone else "not measured", leak, leak.rate


def _line(change: str, cause: KnownLeak, was: float) -> str:
    unit = find_resource(cause.resource).unit
    rate = format_rate(cause.rate, unit)
    if change == "grown":
        rate = f"was {format_rate(was, unit)}, is {rate}"
    where = cause.owner or cause.site or "cause unknown"
    return f"{change:<12}  {short_id(cause.finding)}  {cause.resource} {rate}  {where}  {format_tests(cause.tests)}"


def _facts(findings: Sequence[Finding]) -> dict[str, str]:
    """Return what two sessions must have in common, of the machine and the settings."""
    if not findings:
        return {}
    environment = findings[0].recording.environment
    resources = sorted({verdict.resource for finding in findings for verdict in finding.verdicts})
    python = ".".join(environment.get("python", "").split(".")[:2])
    return {
        "Python": python,
        "libc": environment.get("libc", ""),
        "resources": ", ".join(resources),
    }
