"""What an HTML page consists of, whatever the data's source, and its text; it fetches nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from pytest_leakcheck.model.regular_file import PAGE, check_replaceable, replace_file
from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.report import GUIDE
from pytest_leakcheck.report.glyphs import Row, printable, truncate

# A result that selects a color: as it should be, not as it should be, unknown, or neither right nor
# wrong.
Tone: TypeAlias = Literal["good", "bad", "unsure", "plain"]
XY: TypeAlias = tuple[float, float]
# A result in a word.
Cell: TypeAlias = tuple[str, Tone]
# Height of the title above a chart, in units of the view box.
_TITLE_HEIGHT: Final = 16
# If a section has more cards, only the first is open; the others show their headings.
_MAX_OPENED: Final = 5
# Size of a chart, in units of the view box (the coordinate system of the SVG). On a phone 360
# pixels wide, a text of 10 units is about as large as the captions around the chart.
WIDTH: Final = 340
HEIGHT: Final = 160
_LEFT: Final = 64
_RIGHT: Final = WIDTH - 8
_BOTTOM: Final = HEIGHT - 20
_LINE_HEIGHT: Final = 13
# Letters that fit the width at a font size of 10 units.
MAX_LETTERS: Final = 54
# An axis on which the readings would take a smaller share than this, because the limit is far away,
# is broken after them.
_MIN_SHARE: Final = 0.1
# The share that they take then.
_BROKEN_AT: Final = 0.6


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a chart; the `name` may be empty if the chart has no other curve.

    The points are in ascending order of x, in the units of the chart. `line` has both ends of the
    fitted line.
    """

    name: str
    points: tuple[XY, ...]
    tone: Tone = "plain"
    line: tuple[XY, XY] | None = None


class Limit(NamedTuple):
    """The point where the growth of a chart's first curve reaches a limit, and a line about it."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A counter over iterations, sizes, steps or time, as at least one curve of at least one point.

    The title names the counter, `unit` is that of y, `axis` what x counts, and `words` the message
    for screen readers.
    """

    title: str
    unit: Unit
    axis: str
    curves: tuple[Curve, ...]
    words: str = ""
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a card: rows, numbered lines of source (the marked one is to change), and a path.

    The path leads from a root to what is retained; its lines have notes such as how fast a
    container grows. The `command` is one of the shell, and measures the test again.
    """

    title: str
    rows: tuple[Row, ...] = ()
    source: tuple[tuple[int, str, bool], ...] = ()
    path: tuple[Row, ...] = ()
    note: str = ""
    command: str = ""


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
    tests: tuple[Entry, ...] = ()
    anchor: str = ""
    resource: str = ""
    attached: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page, with any of these contents; a `folded` one first shows only its heading.

    The worst cards come first. The table has for each test its name, its tone, the id of its card
    and a cell for each column, which is a resource.
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

    `partial`: a run was interrupted or has not ended, so data is missing, which the page states at
    the top.
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


def render(page: Page) -> str:
    """Render the HTML of a page. Jinja escapes every text, including the labels of charts.

    The page runs the one script and has the one style that are part of this package: their hashes
    are in its policy.
    """
    # Imported here and below, because a watch describes its state without rendering it.
    from markupsafe import Markup

    files = resources.files("pytest_leakcheck.report.html")
    style = "".join(
        files.joinpath(name).read_text(encoding="utf-8") for name in ("chart.css", "page.css")
    )
    script = files.joinpath("page.js").read_text(encoding="utf-8")
    hashes = [
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in (style, script)
    ]
    only_own = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:"
    policy = f"{only_own}; style-src {hashes[0]}; script-src {hashes[1]}"
    return _render(
        "page.html.jinja",
        page=page,
        policy=policy,
        guide=GUIDE,
        style=Markup(style),  # noqa: S704 - files of this package
        script=Markup(script),  # noqa: S704
        most_opened=_MAX_OPENED,
        kind_of_line=_kind_of_line,
        lay_out=lay_out,
        width=WIDTH,
        height=HEIGHT,
    )


def render_svg(charts: Sequence[Chart]) -> str:
    """Render charts and their titles, one below the other, as the text of a standalone SVG file."""
    pictures = [(truncate(printable(chart.title), MAX_LETTERS), lay_out(chart)) for chart in charts]
    height = len(charts) * (HEIGHT + _TITLE_HEIGHT)
    return _render(
        "charts.svg.jinja",
        pictures=pictures,
        width=WIDTH,
        height=height,
        title_height=_TITLE_HEIGHT,
    )


def write_page(page: Page, folder: Path, name: str) -> Path:
    """Write the page to ``NAME.html`` in a folder, and return its path; raise as `check_page`."""
    html = check_page(folder, name)
    # File names in the page may contain bytes that are not UTF-8. A backslash escape replaces each
    # of them.
    replace_file(html, render(page).encode(errors="backslashreplace"), PAGE)
    return html


def check_page(folder: Path, name: str) -> Path:
    """Create the folder of a page, and return the page's path; raise `OSError` if not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    html = folder / f"{name}.html"
    check_replaceable(html, PAGE)
    return html


def _render(template: str, **values: Any) -> str:
    return str(_environment().get_template(template).render(values))


@cache
def _environment() -> Any:
    """Return what compiles templates, which takes most of the time of a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pytest_leakcheck.report.html", "")
    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=loader,
    )


def _kind_of_line(line: str) -> str:
    """Return the CSS class of a diff line: ``added``, ``taken``, ``place`` (a header) or empty."""
    if line.startswith(("+++", "---", "@@")):
        return "place"
    return {"+": "added", "-": "taken"}.get(line[:1], "")


class Label(NamedTuple):
    """A text at a position; `kind` is its CSS class."""

    kind: str
    x: float
    y: float
    text: str


class Line(NamedTuple):
    """A curve and the line fitted to it as SVG paths; `tone` is a CSS class."""

    tone: Tone
    path: str
    fitted: str


class Picture(NamedTuple):
    """A chart as SVG paths and labels, in a view box `WIDTH` by `HEIGHT`; `limit` may be empty."""

    axes: str
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]
    limit: str = ""


def lay_out(chart: Chart) -> Picture:
    """Compute the paths and labels of a chart.

    The labels cannot overlap: each curve has a row above the picture, with its first and last
    value, and so has the limit; values are on the left, and the first and last x are below. An axis
    with a far limit is broken before it.
    """
    limit = chart.limit
    top = _LINE_HEIGHT * (len(chart.curves) + (limit is not None)) + 10
    scale = _Scale.of(chart, top)
    (x0, y0), (x1, y1) = scale.low, scale.high
    (end, high), base = scale.place(x1, y1), scale.place(x0, y0)[1]
    labels = [
        Label(f"name {curve.tone}", 0, _LINE_HEIGHT * row, _tell(curve, chart))
        for row, curve in enumerate(chart.curves, start=1)
    ]
    heights = {base: y0, high: y1} if y1 > y0 else {base: y0}
    axes, beyond = f"M{_LEFT} {top}V{_BOTTOM}H{_RIGHT}", ""
    if limit is not None:
        labels.append(Label("limit", 0, top - 10, truncate(printable(limit.text), MAX_LETTERS)))
        longest = chart.curves[0].line or chart.curves[0].points
        beyond = scale.path((longest[-1], (limit.x, limit.y)))
        height = scale.place(x0, limit.y)[1]
        axes += f"M{_LEFT} {height:.1f}H{_RIGHT}"
        axes += f"M{end + 5:.1f} {_BOTTOM + 3}l3 -6m3 0l-3 6" if scale.wide == _BROKEN_AT else ""
        axes += f"M{_LEFT - 3} {high - 5:.1f}l6 -3m0 -3l-6 3" if scale.tall == _BROKEN_AT else ""
        # Of values that would overlap, the limit stays.
        heights = {y: value for y, value in heights.items() if abs(y - height) >= _LINE_HEIGHT}
        heights[height] = limit.y
    labels += [
        Label("y", _LEFT - 5, y + 3.5, format_amount(value, chart.unit))
        for y, value in heights.items()
    ]
    labels += _label_x(x0, x1, end, truncate(printable(chart.axis), MAX_LETTERS // 3))
    lines = tuple(
        Line(
            curve.tone,
            scale.path(_thin(curve.points)),
            scale.path(curve.line) if curve.line else "",
        )
        for curve in chart.curves
    )
    return Picture(axes, lines, tuple(labels), beyond)


@dataclass(frozen=True, slots=True)
class _Scale:
    """How readings between two corners are placed below `top`; `wide`, `tall`: axis shares."""

    low: XY
    high: XY
    top: int
    wide: float
    tall: float

    @classmethod
    def of(cls, chart: Chart, top: int) -> Self:
        drawn = [point for curve in chart.curves for point in (*curve.points, *(curve.line or ()))]
        (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*drawn, strict=True))
        wide = tall = 1.0
        if (limit := chart.limit) is not None:
            wide, tall = _share(x1 - x0, limit.x - x0), _share(y1 - y0, limit.y - y0)
        return cls((x0, y0), (x1, y1), top, wide, tall)

    def place(self, x: float, y: float) -> XY:
        (x0, y0), (x1, y1) = self.low, self.high
        # A constant series is drawn in the middle.
        base = _BOTTOM if y1 > y0 else (self.top + _BOTTOM) / 2
        right = _LEFT + (x - x0) * (_RIGHT - _LEFT) * self.wide / ((x1 - x0) or 1)
        height = base - (y - y0) * (base - self.top) * self.tall / ((y1 - y0) or 1)
        # Beyond a break there is only the limit, at the end of the axis.
        return min(_RIGHT, right), max(self.top, height)

    def path(self, points: Iterable[XY]) -> str:
        placed = (self.place(*point) for point in points)
        return "M" + "L".join([f"{x:.1f} {y:.1f}" for x, y in placed])


def _share(readings: float, whole: float) -> float:
    """Return the share of an axis that the readings take."""
    share = readings / whole if whole > readings else 1.0
    return share if share >= _MIN_SHARE else _BROKEN_AT


def _label_x(x0: float, x1: float, end: float, axis: str) -> list[Label]:
    """Label the x axis; the last reading is at `end`, which a limit may lie beyond."""
    y, whole = HEIGHT - 6, end > _RIGHT - _LEFT
    labels = [Label("begin", _LEFT, y, f"{x0:,.6g}")]
    labels.append(
        Label("x", (_LEFT + _RIGHT) / 2, y, axis) if whole else Label("y", _RIGHT, y, axis)
    )
    # A letter takes at most 6.2 units.
    if whole or _LEFT + 50 < end < _RIGHT - 6.2 * len(axis) - 10:
        labels.append(Label("y", end, y, f"{x1:,.6g}"))
    return labels


def _tell(curve: Curve, chart: Chart) -> str:
    """Return a curve's name, first and last value, and their difference, which may be small."""
    first, last = curve.points[0][1], curve.points[-1][1]
    values = f"{format_amount(first, chart.unit)} → {format_amount(last, chart.unit)}"
    change = f" ({'+' if last >= first else ''}{format_amount(last - first, chart.unit)})"
    return f"{truncate(printable(curve.name), MAX_LETTERS // 3)}  {values}{change}".strip()


def _thin(points: Sequence[XY]) -> Iterator[XY]:
    """Yield the lowest and highest point of each of `WIDTH` groups; the picture stays the same."""
    size = max(1, len(points) // WIDTH)
    for start in range(0, len(points), size):
        some = sorted(points[start : start + size], key=itemgetter(1))
        yield from sorted({some[0], some[-1]})
