"""Choose the colors of a report block, which itself stays plain text, because JUnit XML and CI logs receive it too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.report.finding_text import INDENT, LABEL_WIDTH

# How a part of a line is shown: the verdict, a label, the command to copy, a line of the program's source, or plain.
Style: TypeAlias = Literal["verdict", "label", "command", "source", "plain"]

# Labels of the rows that state the verdict.
_VERDICTS: Final = ("leak", "over budget", "unclosed")
_SUSPECT: Final = "   <- "
# Indent of the source line that creates the leak. Most other texts are indented less.
_SOURCE: Final = " " * (INDENT + LABEL_WIDTH + 2)
# Lines of a reference path may have the same indent, but begin with one of these characters.
_NOT_SOURCE: Final = ("\N{BOX DRAWINGS LIGHT UP AND RIGHT}", "`", "\N{HORIZONTAL ELLIPSIS}", "~", " ")


def coloured(text: str) -> Iterator[list[tuple[str, Style]]]:
    """Yield the lines of a block of `finding_text.block`, each as a list of (text, style) parts."""
    for at, line in enumerate(text.splitlines()):
        parts: list[tuple[str, Style]] = [(line, "verdict")]
        if at:
            parts = _parts(line)
        yield [(part, style) for part, style in parts if part]


def _parts(line: str) -> list[tuple[str, Style]]:
    indent, label, rest = line[:INDENT], line[INDENT : INDENT + LABEL_WIDTH], line[INDENT + LABEL_WIDTH :]
    if label.strip():
        if label.strip() in _VERDICTS:
            return [(indent, "plain"), (label + rest, "verdict")]
        return [(indent, "plain"), (label, "label"), (rest, "command" if label.strip() == "next" else "plain")]
    if line.startswith(_SOURCE) and not line.startswith(_NOT_SOURCE, len(_SOURCE)):
        return [(_SOURCE, "plain"), (line[len(_SOURCE) :], "source")]
    before, arrow, after = line.partition(_SUSPECT)
    return [(before, "plain"), (arrow + after, "verdict")]
