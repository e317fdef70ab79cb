"""Define the view model of the HTML page, independent of the source of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_leakcheck.model.units import Unit
from pytest_leakcheck.report.glyphs import Row

# A result that selects a color: as it should be, not as it should be, unknown, or neither right nor wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]
# A result in a word.
Cell: TypeAlias = tuple[str, Tone]


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
    """One picture: a counter over iterations, sizes, steps or time, with at least one curve of at least one point.

    The title names the counter, `unit` is that of y, `axis` what x counts, and `words` the message for screen readers.
    """

    title: str
    unit: Unit
    axis: str
    curves: tuple[Curve, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a card: rows, lines of source with their numbers (the marked one is to be changed), and a path.

    The path leads from a root to what is retained; its lines have notes such as how fast a container grows.
    """

    title: str
    rows: tuple[Row, ...] = ()
    source: tuple[tuple[int, str, bool], ...] = ()
    path: tuple[Row, ...] = ()
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
        command: The shell command that measures it again.
        tests: The tests that reach the cause.
        anchor: Its id on the page; empty if nothing refers to it.
        resource: To sort by.
        attached: A file beside the page.
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
class Section:
    """A part of the page, with any of these contents; a `folded` one shows only its heading until it is opened.

    The worst cards come first. The table has for each test its name, its tone, the id of its card and a cell for each
    column, which is a resource.
    """

    title: str = ""
    intro: str = ""
    cards: tuple[Card, ...] = ()
    columns: tuple[str, ...] = ()
    table: tuple[tuple[str, Tone, str, tuple[Cell, ...]], ...] = ()
    entries: tuple[Entry, ...] = ()
    diff: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page: the results at a glance, paragraphs, what was run and where, and the sections.

    `partial`: a run was interrupted or has not ended, so data is missing, which the page states at the top.
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
