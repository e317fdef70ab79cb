"""Render a `Page` as one HTML file that fetches nothing."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pytest_leakcheck.report.glyphs import printable, truncate
from pytest_leakcheck.report.html.charts import HEIGHT, MAX_LETTERS, WIDTH, lay_out
from pytest_leakcheck.report.html.view_model import Chart, Page

# Height of the title above a chart, in units of the view box.
_TITLE_HEIGHT: Final = 16
# Cards of a section that are open at first; the others show their headings.
_MAX_OPENED: Final = 5


def render(page: Page) -> str:
    """Render the HTML of a page. Jinja escapes every text, including the labels of charts.

    The page runs the one script and has the one style that are part of this package: their hashes are in its policy.
    """
    files = resources.files("pytest_leakcheck.report.html")
    style = "".join(files.joinpath(name).read_text(encoding="utf-8") for name in ("chart.css", "page.css"))
    script = files.joinpath("page.js").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )
    return _render(
        "page.html.jinja",
        page=page,
        policy=policy,
        style=Markup(style),  # noqa: S704 - files of this package
        script=Markup(script),  # noqa: S704
        opened=_MAX_OPENED,
        kind_of_line=_kind_of_line,
        lay_out=lay_out,
        width=WIDTH,
        height=HEIGHT,
    )


def _hash(text: str) -> str:
    """Return a text as a source of a content security policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def render_svg(charts: Sequence[Chart]) -> str:
    """Render charts and their titles, one chart below the other, as the text of one standalone SVG file."""
    pictures = [(truncate(printable(chart.title), MAX_LETTERS), lay_out(chart)) for chart in charts]
    height = len(charts) * (HEIGHT + _TITLE_HEIGHT)
    return _render("charts.svg.jinja", pictures=pictures, width=WIDTH, height=height, title_height=_TITLE_HEIGHT)


def write_page(page: Page, folder: Path, name: str) -> Path:
    """Write the page to ``NAME.html`` in a folder and return its path; raise `OSError` if that cannot be created."""
    folder.mkdir(parents=True, exist_ok=True)
    html = folder / f"{name}.html"
    # File names in the page may contain bytes that are not UTF-8. A backslash escape replaces each of them.
    html.write_text(render(page), encoding="utf-8", errors="backslashreplace")
    return html


def _render(template: str, **values: Any) -> str:
    loader = PackageLoader("pytest_leakcheck.report.html", "")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, loader=loader
    )
    return environment.get_template(template).render(values)


def _kind_of_line(line: str) -> str:
    """Return the CSS class of a line of a diff: ``added``, ``taken`` (removed), ``place`` (a header) or empty."""
    if line.startswith(("+++", "---", "@@")):
        return "place"
    return {"+": "added", "-": "taken"}.get(line[:1], "")
