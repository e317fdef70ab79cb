"""Draw the figures of docs/figures.md from the tables of the other pages, and from what `found.py` has seen.

Usage: python ci/figures.py        (rewrites docs/figures.md and docs/figures/*.svg; a test checks them)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import found

DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
PAGE: Final = DOCS / "figures.md"
PICTURES: Final = DOCS / "figures"
_STYLE: Final = DOCS.parent / "pytest_leakcheck" / "report" / "html" / "chart.css"
_LABEL_WIDTH: Final = 190
_BAR_WIDTH: Final = 310
_WIDTH: Final = 640
_ROW: Final = 18
_BAR: Final = 12

# The cells of a row, by the heads of the columns.
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart: its length is a share of the longest, which may be more than any bar."""

    label: str
    value: float
    shown: str
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and what it is about.

    `page` and `anchor` lead to the table, the command and the date.
    """

    name: str
    title: str
    text: str
    page: str
    anchor: str
    command: str
    measured: str
    bars: Callable[[], Sequence[Bar]]
    longest: float = 0.0


def table(page: str, heading: str, column: str) -> list[Row]:
    """Return the rows of all tables between a heading and the next one that have this column."""
    text = (DOCS / page).read_text(encoding="utf-8")
    part = re.split(rf"(?m)^#+ {re.escape(heading)}$", text, maxsplit=1)[1]
    rows: list[Row] = []
    for block in re.findall(r"(?m)(?:^\|.*\n)+", re.split(r"(?m)^#+ ", part, maxsplit=1)[0]):
        lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        if column in lines[0]:
            rows += [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]
    if not rows:
        raise LookupError(f"{page}: no table with a column {column!r} below {heading!r}")
    return rows


def first_number(text: str) -> float:
    """Return the first number of a cell."""
    return float(re.search(r"[\d.,]+", text)[0].replace(",", ""))  # type: ignore[index]


def _peers(column: str, tone: str) -> Callable[[], list[Bar]]:
    def bars() -> list[Bar]:
        rows = table("benchmarks.md", "37 small external cases", "checker")
        wanted = [one for one in rows if one["mode"] == "default" and one["checker"] != "pytest-leakcheck"]
        return [
            Bar(one["checker"].removesuffix(", now"), first_number(one[column]), one[column], tone) for one in wanted
        ]

    return bars


def _names() -> list[Bar]:
    rows = table("benchmarks.md", "Naming the culprit", "unresolved")[:2]
    tones = {"right": "good", "unresolved": "unsure", "wrong": "bad"}
    return [
        Bar(f"{kind} {head}", int(row[head]) / int(row["cases"]), f"{row[head]} of {row['cases']}", tone)
        for kind, row in zip(("line", "owner"), rows, strict=True)
        for head, tone in tones.items()
    ]


def _census() -> list[Bar]:
    whole = table("false-alarms.md", "3,000 processes", "workload")[-1]
    tones = {"ok": "good", "inconclusive": "unsure", "red": "bad"}
    return [Bar(head, first_number(whole[head]), f"{int(whole[head]):,}", tone) for head, tone in tones.items()]


def _suites() -> list[Row]:
    rows = table("false-alarms.md", "Whole suites", "CPU ratio")
    return [row for row in rows if "**" not in row["suite"]]


def _false_reds() -> list[Bar]:
    return [
        Bar(row["suite"], first_number(row["judged"]), f"{row['judged']} judged, {_false(row)} false", "plain")
        for row in _suites()
    ]


def _false(row: Row) -> str:
    return row["true / by design / false"].rpartition("/")[2].strip()


def _cost() -> list[Bar]:
    return [Bar(row["suite"], first_number(row["CPU ratio"]), f"× {row['CPU ratio']}") for row in _suites()]


def _found() -> list[Bar]:
    leaks, results = found.leaks(), found.read_results()
    packages = [one.package for one in leaks if one.name in results]
    names = sorted(set(packages), key=lambda one: (-packages.count(one), one))
    return [Bar("CPython" if one == "python" else one, packages.count(one), str(packages.count(one))) for one in names]


FIGURES: Final = (
    Figure(
        "peers-found",
        "Leaks found, of 24",
        "Each checker at its documented default, on 24 small cases that leak.",
        "benchmarks.md",
        "37-small-external-cases",
        "python ci/bench/peers.py --corpus FOLDER",
        "2026-11-21 to 2026-11-28",
        _peers("found", "good"),
        24,
    ),
    Figure(
        "peers-false",
        "Clean cases reported, of 13",
        "The same checkers on 13 cases that are clean but noisy.",
        "benchmarks.md",
        "37-small-external-cases",
        "python ci/bench/peers.py --corpus FOLDER",
        "2026-11-21 to 2026-11-28",
        _peers("false alarms", "bad"),
        13,
    ),
    Figure(
        "found",
        "Leaks in released packages",
        "Each has a script that shows it without pytest.",
        "found.md",
        "leaks-in-released-packages",
        "python ci/found.py",
        "2026-11-28",
        _found,
    ),
    Figure(
        "census",
        "Verdicts on clean code, of 3,000 processes",
        "23 real workloads on real libraries, each process with data and a hash seed of its own.",
        "false-alarms.md",
        "3000-processes",
        "python ci/bench/census.py",
        "2026-11-23",
        _census,
    ),
    Figure(
        "suites",
        "Tests judged in suites of others",
        "Samples of the suites of released packages. A false red is one whose test retains nothing.",
        "false-alarms.md",
        "whole-suites",
        "python ci/suites.py",
        "2026-11-25 and 2026-11-27",
        _false_reds,
    ),
    Figure(
        "cost",
        "CPU time of a suite whose every test is judged",
        "As a multiple of plain pytest, for the samples above. A red test takes seconds, so a few tests make out most of it.",
        "false-alarms.md",
        "whole-suites",
        "python ci/suites.py",
        "2026-11-25 and 2026-11-27",
        _cost,
    ),
    Figure(
        "names",
        "Lines and owners named",
        "138 leaky cases that state which lines and owners are right. What is not established is *unresolved*.",
        "benchmarks.md",
        "naming-the-culprit",
        "python ci/bench/attribution.py",
        "2026-11-23",
        _names,
        1,
    ),
)


def draw(figure: Figure) -> str:
    """Return a chart of horizontal bars as SVG."""
    bars = figure.bars()
    longest = figure.longest or max(bar.value for bar in bars)
    rows = "\n".join(
        f'<text class="y" x="{_LABEL_WIDTH - 6}" y="{at + _BAR - 2}">{escape(bar.label)}</text>'
        f'<rect class="{bar.tone}" x="{_LABEL_WIDTH}" y="{at}" width="{max(1.0, _length(bar, longest)):.1f}"'
        f' height="{_BAR}" fill="var(--tone)"/>'
        f'<text x="{_LABEL_WIDTH + _length(bar, longest) + 5:.1f}" y="{at + _BAR - 2}">{escape(bar.shown)}</text>'
        for at, bar in zip(range(28, 28 + _ROW * len(bars), _ROW), bars, strict=True)
    )
    height = 36 + _ROW * len(bars)
    said = "; ".join(f"{bar.label} {bar.shown}" for bar in bars)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" \
height="{height}">
<title>{escape(figure.title)}</title>
<desc>{escape(said)}</desc>
<style>
{_STYLE.read_text(encoding="utf-8").strip()}
</style>
<rect width="100%" height="100%" fill="var(--card)"/>
<text class="title" x="8" y="16">{escape(figure.title)}</text>
{rows}
</svg>
"""


def _length(bar: Bar, longest: float) -> float:
    return bar.value / longest * _BAR_WIDTH


def page() -> str:
    """Return the text of docs/figures.md."""
    sections = "\n\n".join(
        f"""\
## {one.title}

{one.text} [The table]({one.page}#{one.anchor}) is of {one.measured}; `{one.command}` measures it.

![{one.title}: {"; ".join(f"{bar.label} {bar.shown}" for bar in one.bars())}](figures/{one.name}.svg)"""
        for one in FIGURES
    )
    return f"""\
# Figures

What was measured, one chart for each question, each with its command. All machines: 2 cores (virtual), Linux, CPython 3.11.7.

{sections}
"""


def main() -> int:
    """Write the page and its charts."""
    PICTURES.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    for figure in FIGURES:
        (PICTURES / f"{figure.name}.svg").write_text(draw(figure), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
