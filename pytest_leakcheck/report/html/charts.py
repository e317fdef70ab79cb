"""Compute the SVG paths and labels of charts; ``chart.svg.jinja`` draws them, and the CSS of the page colors them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, TypeAlias

from pytest_leakcheck.model.units import Unit, format_amount
from pytest_leakcheck.report.html.view_model import XY, Chart, Curve, Tone

# Size of a chart, in units of the view box (the coordinate system of the SVG). On a phone 360 pixels wide, a text of 10
# units is about as large as the captions around the chart.
WIDTH: Final = 340
HEIGHT: Final = 190
_TOP: Final = 18
_BOTTOM: Final = HEIGHT - 34
_RIGHT: Final = WIDTH - 8
# Width of a letter at a font size of 10 units, overestimated: the font of the browser is not known here.
_LETTER_WIDTH: Final = 6.2
_LINE_HEIGHT: Final = 12
# Series with at most this many points get a marker on each.
_MAX_MARKERS: Final = 40
# The limit of a chart is drawn only if the highest point reaches this fraction of the limit. Otherwise, the curve would
# be a flat line at the bottom.
_NEAR_LIMIT: Final = 0.2
_MAX_INTERVALS: Final = 5
_X_MARGIN: Final = 0.03
# Margin at both ends of the y axis, as a fraction of the range of y. It leaves space for a name above the top curve.
_Y_MARGIN: Final = 0.14
# If counts vary by less than this, the y axis is widened, so that noise does not fill the chart.
_MIN_COUNT_SPAN: Final = 4
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position; `kind` is its CSS class."""

    kind: str
    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A curve as SVG paths: `markers` is a round dot per point, empty for long series; `tone` is a CSS class."""

    tone: Tone
    path: str
    markers: str
    fitted: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart as SVG paths and labels, in a view box of `WIDTH` by `HEIGHT`."""

    grid: str
    axes: str
    limit: str
    marks: str
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]


class _Scale:
    def __init__(self, left: float, x: Range, y: Range) -> None:
        self.left = left
        self._per_x = (_RIGHT - left) / (x[1] - x[0])
        self._per_y = (_TOP - _BOTTOM) / (y[1] - y[0])
        self._x0 = left - x[0] * self._per_x
        self._y0 = _BOTTOM - y[0] * self._per_y

    def x(self, value: float) -> float:
        return round(self._x0 + value * self._per_x, 1)

    def y(self, value: float) -> float:
        return round(self._y0 + value * self._per_y, 1)

    def path(self, points: Iterable[XY]) -> str:
        """Return a polyline. The arithmetic is inlined, because pages have hundreds of thousands of points."""
        x0, per_x, y0, per_y = self._x0, self._per_x, self._y0, self._per_y
        return "M" + "L".join([f"{x0 + x * per_x:.1f} {y0 + y * per_y:.1f}" for x, y in points])


def lay_out(chart: Chart) -> Picture:
    """Compute all paths and labels of one chart."""
    xs = [x for curve in chart.curves for x, _y in curve.points]
    ys = [y for curve in chart.curves for _x, y in curve.points]
    limit = chart.limit if chart.limit is not None and max(ys) >= _NEAR_LIMIT * chart.limit else None
    ys += [y for curve in chart.curves for _x, y in curve.line or ()]
    fitted = [x for curve in chart.curves for x, _y in curve.line or ()]
    x_range = _x_range([*xs, *fitted, *(mark.x for mark in chart.marks)])
    y_range = _y_range(ys if limit is None else [*ys, limit], chart.unit)
    y_ticks = list(_byte_ticks(y_range) if chart.unit == "bytes" else _ticks(y_range, whole=True))
    left = round(10 + _LETTER_WIDTH * max((len(text) for _y, text in y_ticks), default=0), 1)
    scale = _Scale(left, x_range, y_range)
    rows = [(scale.y(value), text) for value, text in y_ticks]
    columns = [(scale.x(value), text) for value, text in _ticks(x_range, whole=all(x == int(x) for x in xs))]
    marks = [scale.x(mark.x) for mark in chart.marks]
    labels = [Label("y", left - 5, y + 3.5, text) for y, text in rows]
    labels += [Label("x", x, _BOTTOM + 14, text) for x, text in columns]
    labels.append(Label("x", (left + _RIGHT) / 2, HEIGHT - 5, fit(chart.axis, _RIGHT - left)))
    labels += [Label("x", x, _TOP - 5, str(number)) for number, x in enumerate(marks, start=1)]
    beside = (
        [Label("limit bad", left + 4, scale.y(limit) - 4, f"limit {format_amount(limit, chart.unit)}")] if limit else []
    )
    return Picture(
        grid="".join(f"M{left} {y}H{_RIGHT}" for y, _text in rows),
        axes=f"M{left} {_TOP}V{_BOTTOM}H{_RIGHT}" + "".join(f"M{x} {_BOTTOM}v3" for x, _text in columns),
        limit=f"M{left} {scale.y(limit)}H{_RIGHT}" if limit else "",
        marks="".join(f"M{x} {_TOP}V{_BOTTOM}" for x in marks),
        lines=tuple(_draw_line(curve, scale) for curve in chart.curves),
        labels=(*labels, *beside, *_name_labels(chart.curves, scale, beside)),
    )


def fit(text: str, width: float) -> str:
    """Shorten a text to a width in the view box, and replace unprintable characters, some of which XML forbids."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    if _text_width(shown) <= width:
        return shown
    while shown and _text_width(shown) + _LETTER_WIDTH > width:
        shown = shown[:-1]
    return f"{shown}…"


def _text_width(text: str) -> float:
    wide = 0 if text.isascii() else sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return _LETTER_WIDTH * (len(text) + wide)


def _draw_line(curve: Curve, scale: _Scale) -> Line:
    path = scale.path(_thin_points(curve.points))
    # A line of length zero with round caps is drawn as a dot.
    markers = f"{path.replace('L', 'h0M')}h0" if len(curve.points) <= _MAX_MARKERS else ""
    return Line(curve.tone, path, markers, scale.path(curve.line) if curve.line else "")


def _name_labels(curves: Sequence[Curve], scale: _Scale, others: Sequence[Label]) -> Iterator[Label]:
    """Yield a label at the end of each curve that has a name. A legend would make readers compare colors."""
    taken = [label.y for label in others]
    for curve in curves:
        if not curve.name:
            continue
        name = fit(curve.name, _RIGHT - scale.left)
        x, y = curve.points[-1]
        x, y = max(scale.x(x), scale.left + _text_width(name)), scale.y(y)
        # Place the name above the end of the curve, or below it if another label is there.
        rows = (y - 6, *(y + _LINE_HEIGHT * (row + 0.1) for row in range(1, len(curves) + 1)))
        y = next(row for row in rows if all(abs(row - other) >= _LINE_HEIGHT for other in taken) or row == rows[-1])
        taken.append(y)
        yield Label(f"name {curve.tone}", round(x, 1), round(y, 1), name)


def _thin_points(points: Sequence[XY]) -> Sequence[XY]:
    """Keep the lowest and the highest point of each of at least `WIDTH` groups; the picture stays the same."""
    each = len(points) // WIDTH
    if each < 4:
        return points
    kept = [points[0]]
    for start in range(0, len(points), each):
        some = sorted(points[start : start + each], key=itemgetter(1))
        kept += sorted({some[0], some[-1]})
    return [*kept, points[-1]]


def _x_range(xs: Sequence[float]) -> Range:
    low, high = min(xs), max(xs)
    if low == high:
        return low - 1, high + 1
    margin = _X_MARGIN * (high - low)
    return low - margin, high + margin


def _y_range(ys: Sequence[float], unit: Unit) -> Range:
    low, high = min(ys), max(ys)
    span = high - low
    if unit == "count" and span < _MIN_COUNT_SPAN:
        return max(-0.2, low - _MIN_COUNT_SPAN / 2), high + _MIN_COUNT_SPAN / 2
    if span == 0:
        return (0, 1024) if high == 0 else (high - 0.05 * abs(high), high + 0.05 * abs(high))
    return low - _Y_MARGIN * span, high + _Y_MARGIN * span


def _ticks(of: Range, *, whole: bool) -> Iterator[tuple[float, str]]:
    step = _round_step((of[1] - of[0]) / _MAX_INTERVALS)
    for value in _multiples(of, max(1, step) if whole else step):
        yield value, f"{value:,.10g}"


def _byte_ticks(of: Range) -> Iterator[tuple[float, str]]:
    """Yield ticks, round in the largest unit of bytes in which the labels need at most two decimals."""
    widest, power = max(map(abs, of)), len(_BYTE_UNITS) - 1
    while power and 1024**power > widest:
        power -= 1
    raw = (of[1] - of[0]) / _MAX_INTERVALS
    while power and raw < 0.01 * 1024**power:
        power -= 1
    unit, name = 1024**power, _BYTE_UNITS[power]
    step = max(_round_step(raw / unit), 0 if power else 1)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    for value in _multiples(of, step * unit):
        yield value, f"{value / unit:,.{decimals}f} {name}" if value else "0"


def _round_step(raw: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))


def _multiples(of: Range, step: float) -> Iterator[float]:
    for count in range(math.ceil(of[0] / step), math.floor(of[1] / step) + 1):
        yield count * step
