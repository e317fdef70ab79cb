"""Read the result of a run from a leak checker's output, and format the results of all runs as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from checkers import CHECKERS, Checker
from subjects import Subject

# The possible outcomes of a run, each with its mark in the table of `matrix`.
MARKS: Final = {"found": "x", "quiet": ".", "undecided": "?", "error": "E", "timeout": "T"}
# Characters of the output that are stored before and after the match that reports a leak. After an error or a timeout,
# the last _CHARS_AFTER characters are stored.
_CHARS_BEFORE, _CHARS_AFTER = 200, 2000


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one checker, in one mode, over one subject (a piece of work that leaks or not).

    Attributes:
        checker: Name of the checker.
        mode: The settings that were used: "default", "best" or "verdict".
        version: The installed versions.
        subject: Name of the subject.
        leaky: Whether the subject leaks.
        outcome: A key of `MARKS`; "found" only if the checker reported a leak and its process ended by itself.
        line: Whether the report names a line that leaks; None if the subject has no such line.
        thing: Whether the report names the leaked object; None if the object has no name.
        owner: Whether the report names the owner, which keeps the leaked object alive; None if there is no owner.
        calls: Number of calls of the subject; None if its process did not end normally.
        seconds: Time from the start of the process to its end.
        message: The report of a leak, or the end of the output after an error or a timeout; else empty.
    """

    checker: str
    mode: str
    version: str
    subject: str
    leaky: bool
    outcome: str
    line: bool | None
    thing: bool | None
    owner: bool | None
    calls: int | None
    seconds: float
    message: str


def outcome_of(checker: Checker, output: str, code: int | None) -> str:
    """Return the outcome of a run.

    Args:
        checker: The checker.
        output: Its output.
        code: Its exit status, negative for a signal; None if it took too long and was killed.
    """
    if code is None:
        return "timeout"
    if code < 0:
        # A process that died of a signal is not trusted, whatever it printed.
        return "error"
    if checker.leak and re.search(checker.leak, output, re.MULTILINE):
        return "found"
    if checker.undecided and re.search(checker.undecided, output, re.MULTILINE):
        return "undecided"
    return "error" if code else "quiet"


def message_of(checker: Checker, output: str, outcome: str) -> str:
    """Return the part of the output to store: the report of a leak, the end after an error or a timeout, or nothing."""
    if outcome in ("quiet", "undecided"):
        return ""
    found = re.search(checker.leak, output, re.MULTILINE) if outcome == "found" else None
    return (
        output[max(0, found.start() - _CHARS_BEFORE) : found.end() + _CHARS_AFTER] if found else output[-_CHARS_AFTER:]
    )


def named(subject: Subject, report: str) -> tuple[bool | None, bool | None, bool | None]:
    """Return whether a report names a leaking line, the leaked object and its owner; None if the subject has none."""
    # Two kinds of text do not count, so they are replaced. A place in the subject's file contains the file's name,
    # which may describe the leak (leaky_mmap.py). A frame in the owner's code does not state what the owner keeps
    # alive.
    places = rf"\S*\b{re.escape(subject.file)}\S*(?: line \d+, in \S+)?"
    prose = re.sub(places, "PLACE", report).replace(subject.name, "SUBJECT")
    numbers = "|".join(map(str, subject.lines))
    line = rf"\b{re.escape(subject.file)}(?::|\"?,? line )(?:{numbers})\b"
    return (
        re.search(line, report) is not None if subject.lines else None,
        re.search(subject.thing, prose) is not None if subject.thing else None,
        re.search(subject.owner, prose) is not None if subject.owner else None,
    )


def table(rows: Sequence[Row]) -> str:
    """Return a table with a line per checker and mode."""
    lines = [
        ("checker", "mode", "found", "false alarms", "line", "object", "owner", "?", "errors", "calls", "time"),
        ("---", "---", *["---:"] * 9),
        *(_summarize(group, _plain_times(rows)) for group in _group_rows(rows)),
    ]
    return _format_table(lines)


def matrix(rows: Sequence[Row]) -> str:
    """Return a table with a line per subject, which shows the outcome of each checker."""
    groups = _group_rows(rows)
    subjects = {row.subject: row.leaky for row in rows}
    outcomes = {(row.checker, row.mode, row.subject): row for row in rows}
    titles = [f"{number} = {group[0].checker} ({group[0].mode})" for number, group in enumerate(groups, 1)]
    lines = [("subject", *(str(number) for number in range(1, len(groups) + 1))), ("---", *[":---:"] * len(groups))]
    for subject in sorted(subjects, key=lambda name: not subjects[name]):
        cells = (outcomes.get((group[0].checker, group[0].mode, subject)) for group in groups)
        lines.append((subject, *(_format_cell(row) if row else "" for row in cells)))
    return "; ".join(titles) + ".\n\n" + _format_table(lines)


def _group_rows(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.checker, row.mode), []).append(row)
    return list(groups.values())


def _plain_times(rows: Sequence[Row]) -> dict[str, float]:
    return {row.subject: row.seconds for row in rows if row.checker == CHECKERS[0].name and row.mode == "default"}


def _summarize(group: Sequence[Row], plain: dict[str, float]) -> tuple[str, ...]:
    """Return the table line of one checker and mode."""
    leaky = [row for row in group if row.leaky]
    clean = [row for row in group if not row.leaky]
    found = [row for row in leaky if row.outcome == "found"]
    alarms = sum(row.outcome == "found" for row in clean)
    ratios = [row.seconds / plain[row.subject] for row in group if row.subject in plain]
    calls = [row.calls for row in group if row.calls is not None]
    return (
        group[0].checker,
        group[0].mode,
        f"{len(found)}/{len(leaky)}",
        f"{alarms}/{len(clean)}",
        _count_named(row.line for row in leaky),
        _count_named(row.thing for row in leaky),
        _count_named(row.owner for row in leaky),
        str(sum(row.outcome == "undecided" for row in group)),
        str(sum(row.outcome in ("error", "timeout") for row in group)),
        f"{median(calls):.0f}" if calls else "",
        f"{median(ratios):.1f}" if ratios else "",
    )


def _count_named(named_or_not: Iterable[bool | None]) -> str:
    """Return the count of True and the count without None, such as ``3/5``; empty if all are None."""
    known = [one for one in named_or_not if one is not None]
    return f"{sum(known)}/{len(known)}" if known else ""


def _format_cell(row: Row) -> str:
    if row.outcome != "found":
        return MARKS[row.outcome]
    if not row.leaky:
        return "FALSE"
    return MARKS["found"] + "l" * (row.line or 0) + "o" * (row.thing or 0) + "w" * (row.owner or 0)


def _format_table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
