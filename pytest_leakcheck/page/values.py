"""What a page shows, as values. Whoever has something to show makes these; nothing here knows where figures come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_leakcheck.units import Unit

# How it came out: as it should, not as it should, not known, or no matter of right and wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart.

    Attributes:
        name: Written at its end; may be empty where a chart has one curve.
        points: x in the unit of the chart's axis, y in the unit of the chart; in the order of x.
        tone: Its colour.
        line: Two ends of a straight line that was fitted to it; None where there is none.
    """

    name: str
    points: tuple[XY, ...]
    tone: Tone = "plain"
    line: tuple[XY, XY] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of interest: drawn as a numbered upright line, and told below the picture.

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
        words: What it says, in a sentence: read aloud in its place, and printed below.
        limit: Where the process dies, in the unit of y. It is drawn where the curves come near it.
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
    """One run that is told: an arm of an incident, a test, or what was watched.

    Attributes:
        name: Its heading.
        tone: How it came out.
        verdicts: A line each.
        culprit: The cause, as the terminal report prints it: its lines are kept. Empty where there is none.
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
        charts: Pictures that several arms have in common, above them.
        diff: A unified diff, as text; None where there is none.
        partial: It was interrupted, so that something is missing; said at the top.
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
