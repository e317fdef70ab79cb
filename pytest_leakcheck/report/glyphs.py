"""Define the special characters of reports, in Unicode and in ASCII."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

from pytest_leakcheck.model.resources import Kind


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of special characters. Both sets have the same widths, so the columns of a report are always the same."""

    times: str
    dash: str
    arrow: str
    both: str
    about: str
    dots: str
    dot: str
    corner: str
    levels: str


UNICODE: Final = Glyphs("\N{MULTIPLICATION SIGN}", "—", "→", "↔", "≈", "…", "·", "└", "▁▂▃▄▅▆▇█")
ASCII: Final = Glyphs("x", "-", ">", "&", "~", "~", "|", "`", "_.:-=+*#")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the set of characters that a stream of this encoding can show."""
    try:
        "".join(astuple(UNICODE)).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def sparkline(readings: Sequence[int], glyphs: Glyphs, width: int = 16) -> str:
    """Draw a series in at most `width` characters, scaled to its lowest and highest reading; flat if it is constant."""
    if len(readings) > width:
        readings = [readings[round(i * (len(readings) - 1) / (width - 1))] for i in range(width)]
    low, high = min(readings), max(readings)
    top = len(glyphs.levels) - 1
    if high == low:
        return glyphs.levels[0] * len(readings)
    return "".join(glyphs.levels[round((value - low) * top / (high - low))] for value in readings)


def shorten(text: str, width: int, glyphs: Glyphs) -> str:
    """Shorten a text to `width` with dots in the middle: both ends of a path or a node id matter."""
    if len(text) <= width:
        return text
    head = (width - 1) // 3
    return text[:head] + glyphs.dots + text[len(text) - (width - 1 - head) :]


def printable(text: str) -> str:
    """Replace control characters by their escapes, because a terminal would obey those in a file or type name."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def with_kind(text: str, kind: Kind) -> str:
    """Prefix a text with the kind of its readings, such as ``simulated``, unless they were measured."""
    return text if kind == "measured" else f"{kind} {text}"
