"""Write all findings of a session to one JSON file, one per line, and read it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# The functions themselves: a test may replace those of the module.
from json import dumps, loads
from pathlib import Path
from typing import ClassVar, Final

from pytest_leakcheck.model import LeakcheckError
from pytest_leakcheck.model.cause import Cause, Causes
from pytest_leakcheck.model.decoding import DecodeError, decode, encode
from pytest_leakcheck.model.finding import Finding
from pytest_leakcheck.model.resources import GAUGE_PREFIX, RESOURCES, Resource, added_rows
from pytest_leakcheck.model.session import Session
from pytest_leakcheck.report.output_file import write_whole

_REWRITE_ADVICE: Final = "Write a new one: pytest --leakcheck --leakcheck-json=FILE"


@dataclass(frozen=True, slots=True)
class Document:
    """The file's content.

    It ends with the causes of the findings, so that a reader need not group them.

    Attributes:
        findings: One per measured test; several for a test that judges several loops or blocks.
        resources: The traits of the counters that the project has added, by name.
        partial: The session was killed before its end.
        session: The session as a whole; None in a journal.
    """

    SCHEMA: ClassVar[int] = 3
    SPARSE: ClassVar = True
    DERIVED: ClassVar = ("causes",)

    findings: tuple[Finding, ...]
    resources: Mapping[str, Resource]
    partial: bool = False
    session: Session | None = None

    @property
    def causes(self) -> tuple[Cause, ...] | None:
        """The causes of what is not green, red ones first; None in a journal, whose findings follow."""
        return None if self.partial else Causes(self.findings).list()


class ReportError(LeakcheckError, ValueError):
    """The file is not a report of findings; the message states what is wrong with it."""


def _parse(data: object) -> Document:
    """Convert the decoded JSON of a file to the document, or raise `ReportError`."""
    if not isinstance(data, dict) or not isinstance(data.get("findings"), list):
        raise ReportError("not a report of findings: write one with pytest --leakcheck --leakcheck-json=FILE")
    try:
        document = decode(Document, data)
        for at, finding in enumerate(document.findings):
            _check_verdicts(finding, document.resources, f"findings[{at}].verdicts")
    except DecodeError as error:
        raise ReportError(f"damaged report: {error}. {_REWRITE_ADVICE}") from None
    return document


def _check_verdicts(finding: Finding, added: Mapping[str, Resource], path: str) -> None:
    if not finding.verdicts:
        raise DecodeError(f"{path}: expected at least one verdict, got none")
    for at, name in enumerate(verdict.resource for verdict in finding.verdicts):
        if name not in added and name not in RESOURCES and not name.startswith(GAUGE_PREFIX):
            valid = f"one of {', '.join(RESOURCES)} or {GAUGE_PREFIX}NAME"
            raise DecodeError(f"{path}[{at}].resource: expected {valid}, got {name!r}")


def read(text: str) -> Document:
    """Read a report, or the journal that a killed session has left, with as many findings as it has whole.

    Raises:
        ReportError: The text is neither, has another schema version, or is damaged.
        ValueError: The text is not JSON.
    """
    first, *lines = text.split("\n")
    if not (first.startswith("{") and first.endswith("}") and lines):
        return _parse(loads(text))
    data = loads(first)
    # The session may have been killed in the midst of a line.
    data["findings"] = [loads(line) for line in lines if line.endswith("}")]
    return _parse(data)


def document(findings: Sequence[Finding], *, partial: bool = False) -> Document:
    """Build the document from the findings of a session."""
    return Document(tuple(findings), added_rows(RESOURCES), partial)


def to_line(finding: Finding) -> str:
    """Return the JSON of a finding, on one line."""
    return dumps(encode(finding), ensure_ascii=False)


def write(path: Path, lines: Iterable[str], causes: Sequence[Cause] = (), session: Session | None = None) -> None:
    """Write the document, with each finding as `to_line` returns it, to the path (`output_file.write_whole`).

    Raises:
        OSError: The file cannot be written. A file that existed before is still there.
    """
    resources = dumps(encode(added_rows(RESOURCES)))
    findings = "".join(f"\n{line}," for line in lines).removesuffix(",")
    listed = ",".join(f"\n{dumps(encode(cause), ensure_ascii=False)}" for cause in causes)
    of_session = f', "session": {dumps(encode(session), ensure_ascii=False)}' if session is not None else ""
    parts = f'"findings": [{findings}\n], "resources": {resources}{of_session}, "causes": [{listed}\n]'
    write_whole(path, f'{{"schema": {Document.SCHEMA}, {parts}}}\n')
