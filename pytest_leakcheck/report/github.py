"""Render causes for GitHub Actions: as annotations of lines, and as a table for the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Final

from pytest_leakcheck.model.culprit import short_file, short_id
from pytest_leakcheck.model.finding import Cause, format_tests

# GitHub shows this many annotations of a step.
_MOST_ANNOTATIONS: Final = 10
# GitHub rejects a summary of more than 1 MiB.
_MOST_BYTES: Final = 900 * 1024
# What a workflow command escapes in a message, and in a property as well.
_IN_MESSAGE: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_IN_PROPERTY: Final = _IN_MESSAGE | str.maketrans({":": "%3A", ",": "%2C"})
_IN_CELL: Final = str.maketrans({"|": r"\|", "\n": " "})


def annotate(causes: Sequence[Cause], root: Path) -> Iterator[str]:
    """Yield a workflow command per red cause: at its line, or at its first test if the line is outside of `root`."""
    red = [cause for cause in causes if cause.colour == "red"]
    for cause in red[:_MOST_ANNOTATIONS]:
        place = _place(cause, root)
        title = f"{cause.outcome.replace('_', ' ')} {short_id(cause.finding)}"
        yield f"::error {place},title={title.translate(_IN_PROPERTY)}::{_message(cause).translate(_IN_MESSAGE)}"
    if len(red) > _MOST_ANNOTATIONS:
        yield f"::notice title=leakcheck::{len(red) - _MOST_ANNOTATIONS} more in the summary of the job"


def summary_table(headline: str, causes: Sequence[Cause], root: Path) -> str:
    """Return the summary of a session in Markdown: the line that accounts for all tests, and the causes."""
    lines = ["### leakcheck", "", headline, ""]
    if causes:
        lines += ["| | cause | growth | line | held by | tests |", "|---|---|---|---|---|---|"]
    size = sum(map(len, lines))
    for number, cause in enumerate(causes):
        word = f"known {cause.outcome}" if cause.known else cause.outcome.replace("_", " ")
        file = cause.site and (_relative(cause.site.file, root) or short_file(cause.site.file))
        line = f"{file}:{cause.site.line}" if cause.site else ""
        cells = (word, short_id(cause.finding), _growth(cause), line, _owner(cause), format_tests(cause.tests))
        row = f"| {' | '.join(cell.translate(_IN_CELL) for cell in cells)} |"
        size += len(row.encode()) + 1
        if size > _MOST_BYTES:
            lines += ["", f"{len(causes) - number:,} more causes are left out."]
            break
        lines.append(row)
    return "\n".join(lines) + "\n"


def _growth(cause: Cause) -> str:
    return f"{cause.resource} {cause.rates}".rstrip()


def _owner(cause: Cause) -> str:
    return cause.owner.name if cause.owner else ""


def _message(cause: Cause) -> str:
    made = f"in {cause.site.function}, {short_file(cause.site.file)}:{cause.site.line}" if cause.site else ""
    held = f"held by {_owner(cause)}" if cause.owner else ""
    return "; ".join(filter(None, (_growth(cause), made, held, format_tests(cause.tests))))


def _place(cause: Cause, root: Path) -> str:
    if cause.site is not None and (file := _relative(cause.site.file, root)):
        return f"file={file.translate(_IN_PROPERTY)},line={cause.site.line}"
    return f"file={cause.tests[0].partition('::')[0].translate(_IN_PROPERTY)}"


def _relative(file: str, root: Path) -> str:
    """Return a path within the repository; empty if the file is elsewhere, or in an environment inside of it."""
    try:
        inside = PurePath(file).relative_to(root)
    except ValueError:
        return ""
    return "" if {"site-packages", "dist-packages"}.intersection(inside.parts) else inside.as_posix()
