"""Charts to pictures by matplotlib: SVG that takes its colours from the page around it, and one PNG of all.

Only the parts without global state are used (`Figure`, no ``pyplot``), so a caller's own plots are not touched.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pytest_leakcheck.page.values import Chart, Curve
from pytest_leakcheck.units import Unit, format_amount

# Inches. At 72 units of SVG per inch a text of 9 units is as large on a phone's 360 pixels as in the page around it.
_WIDTH: Final = 4.8
_HEIGHT: Final = 2.7
_FONT: Final = 9
# Fewer points are marked one by one.
_SINGLE: Final = 40
# A limit is drawn where the highest point is at least this share of it: else the curve would be a line at the bottom.
_NEAR: Final = 0.2
_STEPS: Final = (1, 2, 5, 10)
_LONGEST: Final = 40
# Above a picture, in a type that is a little larger.
_LONGEST_TITLE: Final = 76
# A counter that stands still is shown as a level, and not as the noise of its rounding.
_LEAST_SPAN: Final = 4
# In SVG each colour is one that nobody would choose, to be replaced by a variable of the page's style.
_STAND_INS: Final = {
    "ink": "#010203",
    "faint": "#010204",
    "good": "#010205",
    "bad": "#010206",
    "unsure": "#010207",
    "plain": "#010208",
}
_ON_WHITE: Final = {
    "ink": "#24292f",
    "faint": "#8c959f",
    "good": "#1a7f37",
    "bad": "#cf222e",
    "unsure": "#9a6700",
    "plain": "#0969da",
}
_ABOVE: Final = 0.14
_ID: Final = re.compile(r'(\bid="|href="#|url\(#)')


def draw_svg(chart: Chart, prefix: str) -> str:
    """The element ``<svg>`` of one chart, to be put into a page.

    Args:
        chart: What to draw.
        prefix: Of all its ids, so that several pictures of one page do not share any; a letter first.
    """
    with _style():
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        _draw(figure.add_subplot(), chart, _STAND_INS)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = file.getvalue()
    for name, colour in _STAND_INS.items():
        text = text.replace(colour, f"var(--{name})")
    # What stands before the element is for files of their own. The size is the page's matter; the proportions stay.
    text = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text[text.index("<svg") :], count=1)
    text = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r"(?s)<metadata>.*?</metadata>", "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font: \1 system-ui, sans-serif", text)
    return _ID.sub(rf"\1{prefix}-", text)


def draw_png(charts: Sequence[Chart]) -> bytes:
    """All charts below each other on white, at 144 dots per inch.

    Raises:
        ValueError: There are none.
    """
    if not charts:
        raise ValueError("a picture of no charts")
    with _style():
        figure = Figure(figsize=(_WIDTH * 1.4, _HEIGHT * 1.4 * len(charts)), layout="constrained")
        for place, chart in enumerate(charts, start=1):
            axes = figure.add_subplot(len(charts), 1, place)
            _draw(axes, chart, _ON_WHITE)
            axes.set_title(
                _plain(chart.title, _LONGEST_TITLE), loc="left", pad=14, color=_ON_WHITE["ink"], parse_math=False
            )
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
    return file.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    # From matplotlib 3.11 on its keys have a type of their own.
    settings: Any = {
        # As text the letters are few, can be searched and read aloud, and are drawn by the browser's own font.
        "svg.fonttype": "none",
        # Else the ids are other ones each time, and so is the file.
        "svg.hashsalt": "leakcheck",
        "font.size": _FONT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "text.parse_math": False,
        "text.usetex": False,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        # A letter that its own font does not have is drawn as a box in the PNG, and as itself by a browser.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        yield


def _draw(axes: Axes, chart: Chart, colours: Mapping[str, str]) -> None:
    ink, faint = colours["ink"], colours["faint"]
    # Room above the highest curve for its name.
    axes.margins(y=_ABOVE)
    for curve in chart.curves:
        _draw_curve(axes, curve, colours)
    highest = max(y for curve in chart.curves for _x, y in curve.points)
    if chart.limit is not None and highest >= _NEAR * chart.limit:
        axes.axhline(chart.limit, color=colours["bad"], linestyle=(0, (4, 3)), linewidth=1)
        at = (0.0, chart.limit)
        where = axes.get_yaxis_transform()
        text = f"limit {format_amount(chart.limit, chart.unit)}"
        axes.annotate(text, at, xycoords=where, xytext=(3, 2), textcoords="offset points", color=colours["bad"])
    for number, mark in enumerate(chart.marks, start=1):
        axes.axvline(mark.x, color=faint, linestyle=(0, (1, 2)), linewidth=1)
        at = (mark.x, 1)
        axes.annotate(f"{number}", at, xycoords=axes.get_xaxis_transform(), ha="center", va="bottom", color=ink)
    lowest = min(y for curve in chart.curves for _x, y in curve.points)
    if chart.unit == "count" and highest - lowest < _LEAST_SPAN:
        axes.set_ylim(max(-0.2, lowest - _LEAST_SPAN / 2), highest + _LEAST_SPAN / 2)
    elif highest == lowest == 0:
        axes.set_ylim(0, 1024)
    axes.set_xlabel(_plain(chart.axis), color=ink, parse_math=False)
    whole = all(x == int(x) for curve in chart.curves for x, _y in curve.points)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS) if chart.unit == "count" else _Binary(5, steps=_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _at: _tick(value, chart.unit)))
    axes.tick_params(colors=ink, length=3)
    axes.grid(axis="y", color=faint, alpha=0.25, linewidth=0.6)
    for spine in axes.spines.values():
        spine.set_color(faint)


def _draw_curve(axes: Axes, curve: Curve, colours: Mapping[str, str]) -> None:
    colour = colours[curve.tone]
    xs, ys = [x for x, _y in curve.points], [y for _x, y in curve.points]
    single = "o" if len(curve.points) <= _SINGLE else ""
    axes.plot(xs, ys, color=colour, linewidth=1.4, marker=single, markersize=2.6)
    if curve.line is not None:
        (x0, y0), (x1, y1) = curve.line
        axes.plot([x0, x1], [y0, y1], color=colours["ink"], linewidth=0.9, linestyle=(0, (5, 2)))
    if curve.name:
        # At its end, so that no legend has to be matched with colours that not everybody can tell apart.
        name = axes.annotate(
            _plain(curve.name),
            curve.points[-1],
            xytext=(0, 5),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=colour,
            parse_math=False,
        )
        # A long one must not push the picture aside.
        name.set_in_layout(False)


def _tick(value: float, unit: Unit) -> str:
    return f"{value:,.10g}" if unit == "count" else format_amount(value, "bytes")


class _Binary(MaxNLocator):
    """Ticks at round numbers of a unit of 1,024."""

    def tick_values(self, vmin: float, vmax: float) -> Sequence[float]:
        widest = max(abs(vmin), abs(vmax), 1)
        unit = 1024 ** int(math.log(widest, 1024))
        return [float(tick) * unit for tick in super().tick_values(vmin / unit, vmax / unit)]


def _plain(text: str, longest: int = _LONGEST) -> str:
    """What XML and fonts can show of it, and a picture has room for."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
