"""What a run came to, and the table of all runs. In: the output of a checker. Out: a row; from rows, Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from checkers import Checker
from subjects import Subject

# What a run can come to; each has a mark in the matrix.
MARKS: Final = {"found": "x", "quiet": ".", "undecided": "?", "error": "E", "timeout": "T"}
_BEFORE, _AFTER = 200, 2000


@dataclass(frozen=True, slots=True)
class Row:
    """One checker, at one mode, over one subject.

    Attributes:
        checker: Its name.
        mode: "default" or "best".
        version: What was installed.
        subject: The name of the subject.
        leaky: Whether it leaks.
        outcome: A key of `MARKS`; "found" only where the checker reported a leak and came to its own end.
        line: The report names a line that leaks; this and the next two only where a leak is rightly reported.
        thing: It names what is leaked.
        owner: It names what holds it.
        calls: How often the subject was called; None where its process did not come to its end.
        seconds: From the start of the process to its end.
        message: The report of a leak, or the end of the output of an error.
    """

    checker: str
    mode: str
    version: str
    subject: str
    leaky: bool
    outcome: str
    line: bool
    thing: bool
    owner: bool
    calls: int | None
    seconds: float
    message: str


def outcome_of(checker: Checker, output: str, code: int | None) -> str:
    """What a run came to; a code of None is one that was ended because it took too long."""
    if code is None:
        return "timeout"
    if code < 0:
        # It died of a signal: whatever it had printed, it cannot be relied on.
        return "error"
    if checker.leak and re.search(checker.leak, output, re.MULTILINE):
        return "found"
    if checker.undecided and re.search(checker.undecided, output, re.MULTILINE):
        return "undecided"
    return "error" if code else "quiet"


def message_of(checker: Checker, output: str, outcome: str) -> str:
    if outcome in ("quiet", "undecided"):
        return ""
    found = re.search(checker.leak, output, re.MULTILINE) if outcome == "found" else None
    return output[max(0, found.start() - _BEFORE) : found.end() + _AFTER] if found else output[-_AFTER:]


def names_line(subject: Subject, report: str) -> bool:
    numbers = "|".join(map(str, subject.lines))
    return re.search(rf'\b{re.escape(subject.file)}(?::|"?,? line )(?:{numbers})\b', report) is not None


def names(subject: Subject, pattern: str, report: str) -> bool:
    """Whether a report names a thing or an owner, and does not merely say which subject it is about.

    A place in the file of the subject is masked, since its name says what is leaked (`leaky_mmap.py`), and so is the
    function of a frame: a stack through the owner's code is no statement about who holds what.
    """
    if not pattern:
        return False
    places = rf"\S*\b{re.escape(subject.file)}\S*(?: line \d+, in \S+)?"
    masked = re.sub(places, "PLACE", report).replace(subject.name, "SUBJECT").replace(subject.module, "SUBJECT")
    return re.search(pattern, masked) is not None


def table(rows: Sequence[Row]) -> str:
    """A line per checker and mode, as Markdown."""
    lines = [
        ("checker", "mode", "found", "false alarms", "line", "object", "owner", "?", "errors", "calls", "time"),
        ("---", "---", *["---:"] * 9),
        *(_summary(group, _plain_times(rows)) for group in _groups(rows)),
    ]
    return _markdown(lines)


def matrix(rows: Sequence[Row]) -> str:
    """A line per subject: what each checker made of it."""
    groups = _groups(rows)
    subjects = {row.subject: row.leaky for row in rows}
    outcomes = {(row.checker, row.mode, row.subject): row for row in rows}
    titles = [f"{number} = {group[0].checker} ({group[0].mode})" for number, group in enumerate(groups, 1)]
    lines = [("subject", *(str(number) for number in range(1, len(groups) + 1))), ("---", *[":---:"] * len(groups))]
    for subject in sorted(subjects, key=lambda name: not subjects[name]):
        cells = (outcomes.get((group[0].checker, group[0].mode, subject)) for group in groups)
        lines.append((subject, *(_cell(row) if row else "" for row in cells)))
    return "; ".join(titles) + ".\n\n" + _markdown(lines)


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.checker, row.mode), []).append(row)
    return list(groups.values())


def _plain_times(rows: Sequence[Row]) -> dict[str, float]:
    return {row.subject: row.seconds for row in rows if row.checker == rows[0].checker and row.mode == "default"}


def _summary(group: Sequence[Row], plain: dict[str, float]) -> tuple[str, ...]:
    """A line of the table."""
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
        str(sum(row.line for row in found)),
        str(sum(row.thing for row in found)),
        str(sum(row.owner for row in found)),
        str(sum(row.outcome == "undecided" for row in group)),
        str(sum(row.outcome in ("error", "timeout") for row in group)),
        f"{median(calls):.0f}" if calls else "",
        f"{median(ratios):.1f}" if ratios else "",
    )


def _cell(row: Row) -> str:
    if row.outcome != "found":
        return MARKS[row.outcome]
    if not row.leaky:
        return "FALSE"
    return MARKS["found"] + "l" * row.line + "o" * row.thing + "w" * row.owner


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
