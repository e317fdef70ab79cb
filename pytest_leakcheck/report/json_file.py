"""The lines of a JSON report (``--leakcheck-json``): the first, the last, and how to read a file.

Each finding is a line between these two. The schema of a line is ``report.schema.json``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

# The functions themselves: a test may replace those of the module.
from json import dumps
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from pytest_leakcheck.model import LeakcheckError, describe_error
from pytest_leakcheck.model.decoding import DecodeError, decode, encode, parse
from pytest_leakcheck.model.finding import Cause, Finding
from pytest_leakcheck.model.regular_file import Ours, open_regular
from pytest_leakcheck.model.resources import Resource, with_rows_of
from pytest_leakcheck.model.units import format_count

T = TypeVar("T")
# The start of a report of any version: older ones have the findings in the same object.
REPORT: Final = Ours(
    "a JSON report", re.compile(rb'\s*\{\s*"schema"\s*:\s*(\d{1,9})\s*,\s*"(?:resources|findings)"')
)
_BEGIN_BYTES: Final = 4096
_LAST: Final = '{"session"'
ADVICE: Final = "write a new report: pytest --leakcheck --leakcheck-json=FILE"


@dataclass(frozen=True, slots=True)
class Session:
    """What a report says of a session, beside its findings.

    Attributes:
        headline: The line that accounts for all tests.
        notes: The other lines of the summary that belong to no finding.
        command: The command line, without secrets.
        host: The name of the machine.
        commit: The commit that is checked out; empty if it is unknown.
        seconds: How long the session took.
        versions: Versions that the figures depend on, by name.
        rerun: The command that measures a test again, without its node id.
        more_time: The option that allows the search for a cause more time.
        source: Whether pages show lines of source.
        guide: The page that says what to do about a finding.
    """

    SPARSE: ClassVar = True

    headline: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""
    host: str = ""
    commit: str = ""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    rerun: str = "pytest --leakcheck"
    more_time: str = ""
    source: bool = True
    guide: str = ""


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line of a report, written before the first test.

    Attributes:
        resources: The traits of the counters that the project has added, by name.
    """

    SCHEMA: ClassVar[int] = 4

    resources: Mapping[str, Resource]


@dataclass(frozen=True, slots=True)
class LastLine:
    """The last line of a report, written at the end of the session.

    Attributes:
        session: The session as a whole.
        causes: The causes of what is not green, red ones first, so that a reader need not group the
            findings.
    """

    session: Session
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a file contains, or a page shows; `session` is None if it was killed before its end.

    A test that judges several loops or blocks has several findings.
    """

    findings: tuple[Finding, ...]
    resources: Mapping[str, Resource]
    session: Session | None = None

    @property
    def notice(self) -> str:
        """What to tell a reader if the session did not end; empty if it did."""
        if self.session is not None:
            return ""
        return f"the run did not end (no line of the session): it has {format_count(len(self.findings), 'finding')}"


class ReportError(LeakcheckError, ValueError):
    """The file is no report of this version, or damaged; the message says which, and what to do."""


@contextmanager
def fitting() -> Iterator[None]:
    """Raise `ReportError` in place of an error that values cause which do not fit together."""
    try:
        yield
    except LeakcheckError:
        raise
    except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
        what = f"what it contains does not fit together ({describe_error(error)})"
        raise ReportError(f"damaged: {what}") from None


def to_line(content: FirstLine | Finding | LastLine) -> str:
    """Return a line of JSON with its end, in ASCII: each transport between processes accepts it."""
    return dumps(encode(content)) + "\n"


def is_report(path: Path) -> bool:
    """Return whether a file begins as a report of any version; raise `OSError` if unreadable."""
    with open_regular(path) as file:
        return REPORT.begin.match(file.read(_BEGIN_BYTES)) is not None


def read(path: Path) -> Report:
    """Read a report; of a session that was killed, read the findings that it had written.

    Raises:
        OSError: The file cannot be read.
        ReportError: It is not a report, was written by another version, or is damaged.
    """
    with open_regular(path, "r") as file:
        first = file.readline()
        start = REPORT.begin.match(first.encode())
        if start is None:
            raise ReportError(
                f'not a report: it does not begin with {{"schema": {FirstLine.SCHEMA}, "resources"; {ADVICE}'
            )
        if int(start[1]) != FirstLine.SCHEMA:
            raise ReportError(
                f"a report of schema {int(start[1])}: this version reads schema {FirstLine.SCHEMA}; {ADVICE}"
            )
        resources = _decode(FirstLine, first, 1).resources
        findings: list[Finding] = []
        with with_rows_of(resources):
            for number, line in enumerate(file, start=2):
                if not line.endswith("\n"):
                    # A killed session was writing it.
                    break
                if line.startswith(_LAST):
                    return Report(
                        tuple(findings), resources, _decode(LastLine, line, number).session
                    )
                findings.append(_decode(Finding, line, number))
    return Report(tuple(findings), resources)


def _decode(kind: type[T], line: str, number: int) -> T:
    try:
        return decode(kind, parse(line))
    except DecodeError as error:
        raise ReportError(f"damaged in line {number}: {error}; {ADVICE}") from None
