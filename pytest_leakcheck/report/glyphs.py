"""Prepare texts of reports: shorten them, draw a series, replace what a terminal cannot show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final, TypeAlias

from pytest_leakcheck.model.escaping import printable as printable
from pytest_leakcheck.model.resources import Kind

# A label and its text; a row without a label continues the one before it.
Row: TypeAlias = tuple[str, str]

LEVELS: Final = "▁▂▃▄▅▆▇█"
# The special characters of reports, and what replaces them. The widths are equal, so columns stay.
_IN_ASCII: Final = str.maketrans(f"×—→≈…·└{LEVELS}", "x->~~|`_.:-=+*#")


def shown_in(text: str, encoding: str | None) -> str:
    """Replace what a stream of this encoding cannot show; without an encoding, it takes any text.

    A report is Unicode until it leaves for a terminal, where this is called.
    """
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_IN_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def sparkline(readings: Sequence[int], width: int = 16) -> str:
    """Draw a series in at most `width` characters, scaled to its range; flat if it is constant."""
    if len(readings) > width:
        readings = [readings[round(i * (len(readings) - 1) / (width - 1))] for i in range(width)]
    low, high = min(readings), max(readings)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round((value - low) * top / max(1, high - low))] for value in readings)


def shorten(text: str, width: int) -> str:
    """Shorten a text to `width` with dots in the middle: both ends of paths and node ids matter.

    No name is cut in two if the end then still takes half of the width.
    """
    if len(text) <= width:
        return text
    end = re.search(f"[/ ].{{{width // 2},{width - 2}}}$", text) if width > 2 else None
    head = (width - 1) // 3 if end is None else width - 1 - len(end[0])
    begin = text[:head] if end is None else re.sub("[^/ ]*$", "", text[:head])
    return f"{begin}…{text[len(text) - (width - 1 - head) :]}"


def truncate(text: str, width: int) -> str:
    """Shorten a text to `width` with dots at its end."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def in_quotes(word: str) -> str:
    """Quote a word of a shell command."""
    # Between double quotes, a shell replaces these characters or ends the text at them.
    return shlex.quote(word) if {*'"$`\\!'}.intersection(word) else f'"{word}"'


def with_kind(text: str, kind: Kind) -> str:
    """Prefix a text with the kind of its readings, such as ``simulated``, unless measured."""
    return text if kind == "measured" else f"{kind} {text}"


def under(label: str, texts: Iterable[str]) -> Iterator[Row]:
    """Yield a row for each text; only the first has the label."""
    return zip(chain([label], repeat("")), texts, strict=False)
