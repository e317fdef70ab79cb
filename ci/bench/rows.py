"""What a run came to, and the table of all runs. In: the output of a checker. Out: a row; from rows, Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from checkers import CHECKERS, Checker
from subjects import Subject

# What a run can come to; each has a mark in the matrix.
MARKS: Final = {"found": "x", "quiet": ".", "undecided": "?", "error": "E", "timeout": "T"}
# Characters of an output that are worth keeping, before and after what says that there is a leak.
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
        line: A leak is rightly reported, and the report names a line that leaks; None where there is none to name.
        thing: It names what is leaked; None likewise.
        owner: It names what holds it; None likewise.
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
    line: bool | None
    thing: bool | None
    owner: bool | None
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


def named(subject: Subject, report: str) -> tuple[bool | None, bool | None, bool | None]:
    """Whether a report names a line, the thing and the owner; None for each that the subject does not have."""
    # A place in the file of the subject says what is leaked by its name (leaky_mmap.py), and a frame in the code of the
    # owner says nothing of who holds what.
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
    return {row.subject: row.seconds for row in rows if row.checker == CHECKERS[0].name and row.mode == "default"}


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
        _share(row.line for row in leaky),
        _share(row.thing for row in leaky),
        _share(row.owner for row in leaky),
        str(sum(row.outcome == "undecided" for row in group)),
        str(sum(row.outcome in ("error", "timeout") for row in group)),
        f"{median(calls):.0f}" if calls else "",
        f"{median(ratios):.1f}" if ratios else "",
    )


def _share(named_or_not: Iterable[bool | None]) -> str:
    """How many are named of those that can be."""
    known = [one for one in named_or_not if one is not None]
    return f"{sum(known)}/{len(known)}" if known else ""


def _cell(row: Row) -> str:
    if row.outcome != "found":
        return MARKS[row.outcome]
    if not row.leaky:
        return "FALSE"
    return MARKS["found"] + "l" * (row.line or 0) + "o" * (row.thing or 0) + "w" * (row.owner or 0)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
