"""Compute the polylines and labels of charts; ``chart.svg.jinja`` draws them, and the CSS of the page colors them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from pytest_leakcheck.model.units import format_amount
from pytest_leakcheck.report.glyphs import printable, truncate
from pytest_leakcheck.report.html.view_model import XY, Chart, Curve, Tone

# Size of a chart, in units of the view box (the coordinate system of the SVG). On a phone 360 pixels wide, a text of 10
# units is about as large as the captions around the chart.
WIDTH: Final = 340
HEIGHT: Final = 160
_LEFT: Final = 64
_RIGHT: Final = WIDTH - 8
_BOTTOM: Final = HEIGHT - 20
_LINE_HEIGHT: Final = 13
# Letters that fit the width at a font size of 10 units.
MAX_LETTERS: Final = 54


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
    """A chart as SVG paths and labels, in a view box of `WIDTH` by `HEIGHT`."""

    axes: str
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]


def lay_out(chart: Chart) -> Picture:
    """Compute the paths and labels of a chart.

    The labels cannot overlap: each curve has a row above the picture, with its first and last value; the lowest and
    the highest value are on the left, and the first and last x are below.
    """
    top = _LINE_HEIGHT * len(chart.curves) + 10
    drawn = [point for curve in chart.curves for point in (*curve.points, *(curve.line or ()))]
    (x0, x1), (y0, y1) = ((min(values), max(values)) for values in zip(*drawn, strict=True))
    # A constant series is drawn in the middle.
    base = _BOTTOM if y1 > y0 else (top + _BOTTOM) / 2
    per_x, per_y = (_RIGHT - _LEFT) / ((x1 - x0) or 1), (base - top) / ((y1 - y0) or 1)

    def path(points: Iterable[XY]) -> str:
        return "M" + "L".join([f"{_LEFT + (x - x0) * per_x:.1f} {base - (y - y0) * per_y:.1f}" for x, y in points])

    labels = [
        Label(f"name {curve.tone}", 8, _LINE_HEIGHT * row, _tell(curve, chart))
        for row, curve in enumerate(chart.curves, start=1)
    ]
    heights = {y0: base, y1: top} if y1 > y0 else {y0: base}
    labels += [Label("y", _LEFT - 5, y + 3.5, format_amount(value, chart.unit)) for value, y in heights.items()]
    labels += [
        Label("begin", _LEFT, HEIGHT - 6, f"{x0:,.6g}"),
        Label("x", (_LEFT + _RIGHT) / 2, HEIGHT - 6, truncate(printable(chart.axis), MAX_LETTERS // 3)),
        Label("y", _RIGHT, HEIGHT - 6, f"{x1:,.6g}"),
    ]
    lines = tuple(Line(one.tone, path(_thin(one.points)), path(one.line) if one.line else "") for one in chart.curves)
    return Picture(f"M{_LEFT} {top}V{_BOTTOM}H{_RIGHT}", lines, tuple(labels))


def _tell(curve: Curve, chart: Chart) -> str:
    """Return the name of a curve, its first and last value, and their difference, which may be small beside them."""
    first, last = curve.points[0][1], curve.points[-1][1]
    values = f"{format_amount(first, chart.unit)} → {format_amount(last, chart.unit)}"
    change = f" ({'+' if last >= first else ''}{format_amount(last - first, chart.unit)})"
    return f"{truncate(printable(curve.name), MAX_LETTERS // 3)}  {values}{change}".strip()


def _thin(points: Sequence[XY]) -> Iterator[XY]:
    """Yield the lowest and the highest point of each of `WIDTH` groups; the picture stays the same."""
    each = max(1, len(points) // WIDTH)
    for start in range(0, len(points), each):
        some = sorted(points[start : start + each], key=itemgetter(1))
        yield from sorted({some[0], some[-1]})
