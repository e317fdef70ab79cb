"""Define the view model of the HTML page, independent of the source of the data."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, TypeAlias

from pytest_leakcheck.model.units import Unit

# A result: as it should be, not as it should be, unknown, or neither right nor wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart.

    Attributes:
        name: Label at its end; may be empty if it is the only curve.
        points: x in the unit of the chart's axis, y in the unit of the chart; in the order of x.
        tone: Selects its color.
        line: Both ends of the fitted line; None without one.
    """

    name: str
    points: tuple[XY, ...]
    tone: Tone = "plain"
    line: tuple[XY, XY] | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of interest: a numbered vertical line, explained below the picture.

    Attributes:
        x: Its position, in the unit of the chart's axis.
        label: What happened there.
    """

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: a counter over iterations, sizes, steps or time.

    Attributes:
        title: What is counted, such as ``fd: descriptors``.
        unit: The unit of y.
        axis: What x counts, such as ``iteration`` or ``second``.
        curves: At least one, each with at least one point.
        words: Its message in a sentence, for screen readers and as the caption.
        limit: The value at which the process dies, in the unit of y; drawn only if a curve comes near it.
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
        tone: Its result.
        verdicts: One line per verdict.
        culprit: The cause as in the terminal report, with its line breaks; empty without one.
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
        summary: Paragraphs below the heading.
        arms: The runs, in order.
        charts: Pictures shared by several arms, shown above them.
        diff: A unified diff; None without one.
        partial: The run was interrupted, so data is missing; the page states this at the top.
    """

    title: str
    summary: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    charts: tuple[Chart, ...] = ()
    diff: str | None = None
    partial: bool = False

    @property
    def pictures(self) -> tuple[Chart, ...]:
        """All charts, in the order in which the page shows them."""
        return self.charts + tuple(chart for arm in self.arms for chart in arm.charts)


def missing_for_page() -> str:
    """Return the missing package and the command that installs it; empty if nothing is missing."""
    return "" if find_spec("jinja2") else "needs jinja2: pip install 'pytest-leakcheck[report]'"
