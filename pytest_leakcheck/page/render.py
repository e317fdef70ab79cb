"""A `Page` to the text of one HTML file that fetches nothing, and both files to a folder."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from pytest_leakcheck.page.picture import draw_png, draw_svg
from pytest_leakcheck.page.values import Chart, Page

_TEMPLATE: Final = "page.html.jinja"


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a diff, with what becomes of it: ``added``, ``taken``, ``place``, or empty."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Written:
    """Where a page was written; ``png`` is None where it has no picture."""

    html: Path
    png: Path | None


def render(page: Page) -> str:
    """The HTML. All text of the page is escaped; only the pictures, which matplotlib has escaped, go in as they are."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files("pytest_leakcheck.page").joinpath(_TEMPLATE).read_text(encoding="utf-8"))
    prefixes = {id(chart): f"p{number}" for number, chart in enumerate(page.pictures)}

    def picture(chart: Chart) -> Markup:
        return Markup(draw_svg(chart, prefixes[id(chart)]))  # noqa: S704 - made by matplotlib, which escapes texts

    return template.render(page=page, picture=picture, diff=_diff_lines(page.diff or ""))


def write_page(page: Page, folder: Path, name: str) -> Written:
    """Write NAME.html and, where there are charts, NAME.png.

    Raises:
        OSError: The folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    html, png = folder / f"{name}.html", folder / f"{name}.png"
    # A file's name may hold bytes that are no UTF-8.
    html.write_text(render(page), encoding="utf-8", errors="backslashreplace")
    if not page.pictures:
        return Written(html, None)
    png.write_bytes(draw_png(page.pictures))
    return Written(html, png)


def _diff_lines(text: str) -> list[_Line]:
    return [_Line(line, _kind(line)) for line in text.splitlines()]


def _kind(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "place"
    return {"+": "added", "-": "taken"}.get(line[:1], "")
