"""Write the generated parts of docs/batch-size.md and its plot. A test checks that they are up to date.

Usage: python ci/batch_size.py        (rewrites docs/batch-size.md and docs/batch-size.svg)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from leakcheck_incidents.batch_size import convergence, examples
from leakcheck_incidents.batch_size.plants import KINDS, RUNS

DOCS: Final = Path(__file__).parents[1] / "docs"
PART: Final = re.compile(r"(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end -->)")
PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "examples": examples.table,
    "initial": examples.initial_table,
    "convergence": convergence.table,
}

# The plot has a panel per kind of plant (simulated configuration). Key: a name in `plants.KINDS`; value: the title of
# the panel.
_PANELS: Final = {
    "any, noise 0.5 %": "any plant, noise of 0.5 %",
    "changed to another": "after the plant has changed",
}
_COLOURS: Final = {
    "adaptive": "#1a7f37",
    "the write-up's rule": "#cf222e",
    "the rule, clamped to 0.02 ... 1": "#9a6700",
}
_WIDTH, _HEIGHT, _LEFT, _TOP = 300, 180, 46, 34


def plot() -> str:
    """Draw the share of plants whose peak is within 2 % of the target, by run, as SVG.

    There is a panel per kind of plant, with a line per policy.
    """
    total_width, total_height = 2 * (_WIDTH + _LEFT) + 14, _TOP + _HEIGHT + 76
    size = f'width="{total_width}" height="{total_height}"'
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}"'
    parts = [
        f'<svg {box} {size} font-family="sans-serif" font-size="12">',
        f'<rect {size} fill="white"/>',
    ]
    for number, (kind, title) in enumerate(_PANELS.items()):
        parts += _draw_panel(kind, title, _LEFT + number * (_WIDTH + _LEFT), _TOP)
    for number, (name, colour) in enumerate(_COLOURS.items()):
        x, y = _LEFT + number * 215, total_height - 12
        parts.append(f'<path d="M{x} {y - 4}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 24}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _draw_panel(kind: str, title: str, left: int, top: int) -> list[str]:
    """Return the SVG elements of one panel: title, grid, axis labels, and a line per policy."""

    def x(run: float) -> float:
        return left + (run - 1) * _WIDTH / (RUNS - 1)

    def y(share: float) -> float:
        return top + (1 - share) * _HEIGHT

    parts = [f'<text x="{left}" y="{top - 14}" font-weight="bold">{title}</text>']
    for percent in (0, 50, 100):
        height = y(percent / 100)
        parts.append(f'<path d="M{left} {height:.1f}h{_WIDTH}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{left - 6}" y="{height + 4:.1f}" text-anchor="end">{percent} %</text>')
    parts += [
        f'<text x="{x(run):.1f}" y="{top + _HEIGHT + 18}" text-anchor="middle">{run}</text>'
        for run in (1, convergence.SOON, 10, 15, RUNS)
    ]
    parts.append(f'<text x="{left}" y="{top + _HEIGHT + 36}">run</text>')
    at = x(convergence.SOON)
    parts.append(f'<path d="M{at:.1f} {top}v{_HEIGHT}" stroke="#d0d7de" stroke-dasharray="4 3"/>')
    for name, policy in convergence.POLICIES.items():
        found = convergence.figures(policy, KINDS[kind])
        points = [f"{x(run):.1f} {y(count / found.plants):.1f}" for run, count in enumerate(found.on_target, 1)]
        parts.append(f'<path d="M{"L".join(points)}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2"/>')
    return parts


def main() -> None:
    """Rewrite the page and the plot."""
    page = DOCS / "batch-size.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(PART.sub(lambda match: match[1] + PARTS[match[2]]() + match[3], text), encoding="utf-8")
    (DOCS / "batch-size.svg").write_text(plot(), encoding="utf-8")


if __name__ == "__main__":
    main()
