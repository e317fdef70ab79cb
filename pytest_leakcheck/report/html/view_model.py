"""View model of the HTML page, independent of where the data comes from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, TypeAlias

from pytest_leakcheck.model.units import Unit

# The result: as it should be, not as it should be, unknown, or neither right nor wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart.

    Attributes:
        name: Written at its end; may be empty if it is the only curve.
        points: x in the unit of the chart's axis, y in the unit of the chart; in the order of x.
        tone: Its colour.
        line: The ends of the fitted line; None without one.
    """

    name: str
    points: tuple[XY, ...]
    tone: Tone = "plain"
    line: tuple[XY, XY] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of interest: a numbered vertical line, explained below the picture.

    Attributes:
        x: In the unit of the chart's axis.
        label: What happened there.
    """

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: a counter over the course of the work.

    Attributes:
        title: What is counted, such as ``fd: descriptors``.
        unit: Of y.
        axis: What x counts, such as ``iteration`` or ``seconds``.
        curves: At least one, each with at least one point.
        words: Its message in a sentence: the text for screen readers, and printed below.
        limit: Where the process dies, in the unit of y; drawn if a curve comes near it.
        marks: Points of interest, in the order of x.
    """

    title: str
    unit: Unit
    axis: str
    curves: tuple[Curve, ...]
    words: str = ""
    limit: float | None = None
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """One run: an arm of an incident, a test, or a watched process tree.

    Attributes:
        name: Its heading.
        tone: How it came out.
        verdicts: A line each.
        culprit: The cause as in the terminal report, line breaks kept; empty without one.
        charts: Its own pictures.
    """

    name: str
    tone: Tone = "plain"
    verdicts: tuple[str, ...] = ()
    culprit: str = ""
    charts: tuple[Chart, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page.

    Attributes:
        title: Its heading.
        summary: Paragraphs below it.
        arms: What was run, in order.
        charts: Pictures shared by several arms, shown above them.
        diff: A unified diff; None without one.
        partial: It was interrupted, so something is missing; the page says so at the top.
    """

    title: str
    summary: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    charts: tuple[Chart, ...] = ()
    diff: str | None = None
    partial: bool = False

    @property
    def pictures(self) -> tuple[Chart, ...]:
        """All charts in the order in which the page shows them."""
        return self.charts + tuple(chart for arm in self.arms for chart in arm.charts)


def missing_for_page() -> str:
    """Name the missing package and the command that installs it; return an empty text if nothing is missing."""
    return "" if find_spec("jinja2") else "needs jinja2: pip install 'pytest-leakcheck[report]'"
