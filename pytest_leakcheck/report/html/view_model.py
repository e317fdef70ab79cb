"""Define the view model of the HTML page, independent of the source of the data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final, Literal, TypeAlias

from pytest_leakcheck.model.units import Unit

# A result that selects a color: as it should be, not as it should be, unknown, or neither right nor wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]
# A page with more charts is slow to make and to show.
MAX_CHARTS: Final = 60
_WORST_FIRST: Final[tuple[Tone, ...]] = ("bad", "unsure", "plain", "good")


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart.

    Attributes:
        name: The label at the end of the curve; may be empty if the chart has no other curve.
        points: (x, y) in ascending order of x; x in the unit of the chart's axis, y in the unit of the chart.
        tone: Selects the color of the curve.
        line: Both ends of the fitted line; None if there is none.
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
        words: The message of the chart in a sentence, for screen readers and as the caption.
        limit: The value at which the process fails, in the unit of y; drawn only if a curve comes near it.
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
    """One section of the page, about one run: a variant of an incident, a test, or a watched process tree.

    Attributes:
        name: The heading.
        tone: The result of the run.
        verdicts: One line per verdict.
        culprit: Text with line breaks: the cause as in the terminal report, or the details of a watch; may be empty.
        charts: The charts of this run alone.
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
        arms: The sections, in order.
        charts: Charts that show several arms, above all sections.
        diff: A unified diff; None if there is none.
        partial: A run was interrupted or has not ended, so data is missing. The page states this at the top.
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


def limit_charts(page: Page) -> Page:
    """Return the page with `MAX_CHARTS` charts at most, those with bad results first, and a note of that if some are left out."""
    charts = sorted(page.pictures, key=lambda chart: min(_WORST_FIRST.index(curve.tone) for curve in chart.curves))
    if len(charts) <= MAX_CHARTS:
        return page
    kept = {id(chart) for chart in charts[:MAX_CHARTS]}
    arms = tuple(replace(arm, charts=tuple(one for one in arm.charts if id(one) in kept)) for arm in page.arms)
    note = (
        f"Charts: {MAX_CHARTS} of {len(charts):,}. Red ones come first, then yellow ones; all verdicts are in the text."
    )
    own = tuple(one for one in page.charts if id(one) in kept)
    return replace(page, summary=(*page.summary, note), arms=arms, charts=own)


def missing_for_page() -> str:
    """Return the missing package and the command that installs it; empty if nothing is missing."""
    return "" if find_spec("jinja2") else "needs jinja2: pip install 'pytest-leakcheck[report]'"
