"""Define the view model of the HTML page, independent of the source of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_leakcheck.model.units import Unit

# A result that selects a color: as it should be, not as it should be, unknown, or neither right nor wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart; the `name` may be empty if the chart has no other curve.

    The points are in ascending order of x, in the units of the chart. `line` has both ends of the fitted line.
    """

    name: str
    points: tuple[XY, ...]
    tone: Tone = "plain"
    line: tuple[XY, XY] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: a counter over iterations, sizes, steps or time.

    Attributes:
        title: What is counted, such as ``fd: descriptors``.
        unit: The unit of y.
        axis: What x counts, such as ``iteration`` or ``second``.
        curves: At least one, each with at least one point.
        words: The message of the chart in a sentence, for screen readers and as the caption.
    """

    title: str
    unit: Unit
    axis: str
    curves: tuple[Curve, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A label and its text, which may have several lines."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """A line, indented by its depth, of the path from a root object to what is retained.

    The `note` states how fast the container at its end grows; empty for the other references.
    """

    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of source, with its number from 1; the `marked` one is to be changed."""

    number: int
    text: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a card: what grows, where it is made, what holds it, or what to do; `note` explains the path."""

    title: str
    rows: tuple[Row, ...] = ()
    source: tuple[SourceLine, ...] = ()
    path: tuple[Reference, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name and what there is to say of it, such as a test and what it would have caught."""

    name: str
    text: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Card:
    """One cause of growth, one test, or one watched process tree.

    Attributes:
        badge: The result in a word.
        about: Short facts for the line below the heading.
        lead: What grows, since when, and when it ends the run.
        command: The shell command that measures it again; may be empty.
        tests: The tests that reach the cause.
        anchor: Its id on the page; empty if nothing refers to it.
        resource: The resource, to sort by.
        attached: A file beside the page; may be empty.
    """

    title: str
    tone: Tone = "plain"
    badge: str = ""
    about: tuple[str, ...] = ()
    lead: str = ""
    parts: tuple[Part, ...] = ()
    charts: tuple[Chart, ...] = ()
    command: str = ""
    tests: tuple[Entry, ...] = ()
    anchor: str = ""
    resource: str = ""
    attached: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """The verdict on one resource of one test; empty if it was not judged."""

    text: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """The verdicts on one test, in the order of the columns; `anchor` is that of its card."""

    test: str
    tone: Tone
    anchor: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table of tests and resources."""

    resources: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page, with any of these contents; a `folded` one shows only its heading until it is opened.

    The `intro` is a sentence below the heading, `cards` come the worst first, and `diff` is a unified diff.
    """

    title: str = ""
    intro: str = ""
    cards: tuple[Card, ...] = ()
    matrix: Matrix | None = None
    entries: tuple[Entry, ...] = ()
    diff: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page.

    Attributes:
        counts: The results at a glance, such as "3 red causes".
        summary: Paragraphs below the heading.
        facts: What was run, and where.
        partial: A run was interrupted or has not ended, so data is missing. The page states this at the top.
    """

    title: str
    counts: tuple[Cell, ...] = ()
    summary: tuple[str, ...] = ()
    facts: tuple[Row, ...] = ()
    sections: tuple[Section, ...] = ()
    partial: bool = False

    @property
    def cards(self) -> tuple[Card, ...]:
        return tuple(card for section in self.sections for card in section.cards)
