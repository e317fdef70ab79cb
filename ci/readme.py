"""Write the generated parts of the documentation: the first test and its reports, and the tables of the reference.

Usage: python ci/readme.py        (rewrites the `PAGES` and docs/report.svg; a test checks them)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Final

from pytest_leakcheck.config.plan import valid_form
from pytest_leakcheck.config.settings import OPTIONS
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.model.units import format_amount

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "report.svg"
PAGES: Final = (ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "reference.md")
PART: Final = re.compile(r"(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end -->)")
# Width of a column in a picture that rich draws.
_COLUMN: Final = 12.2
# The test of the first report. The list keeps the file open.
LEAKY: Final = """\
import pytest

OPENED = []


def read_config(path):
    file = path.open()
    OPENED.append(file)
    return file.read()


@pytest.mark.leakcheck
def test_read_config(tmp_path):
    path = tmp_path / "config"
    path.write_text("answer = 42")
    assert read_config(path) == "answer = 42"
"""
_FIXED: Final = LEAKY.replace("    return file.read()", "    with OPENED.pop():\n        return file.read()")


def run(test: str, *arguments: str) -> str:
    """Return what ``pytest --leakcheck`` prints for a test file."""
    with tempfile.TemporaryDirectory() as folder:
        # So long that the number of iterations ends the wait for a pool: on a busy machine the time would.
        Path(folder, "pytest.ini").write_text("[pytest]\nleakcheck_min_time = 60\n", encoding="utf-8")
        Path(folder, "test_config.py").write_text(test, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "--leakcheck", "-p", "no:cacheprovider", *arguments]
        # Plugins of other projects would add their lines.
        command += [f"-pno:{name}" for name in ("asyncio", "anyio", "hypothesispytest", "cov", "timeout")]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        limited = ["sh", "-c", 'ulimit -S -n 1024 && exec "$@"', "sh", *command]
        done = subprocess.run(
            limited,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env=clean | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        )
    return done.stdout


def red() -> str:
    """Return the report on the leaky test, as a terminal in colour shows it."""
    text = run(LEAKY, "--color=yes")
    begin = text.index("test_config.py", text.index("collected"))
    return text[begin : text.index("===", text.index(" repeating took"))].rpartition("\n")[0]


def without_colours(text: str) -> str:
    """Return a text without the codes that set its colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def picture(text: str) -> str:
    """Return a picture of a terminal in colour, as SVG."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=80, file=StringIO(), force_terminal=True, color_system="standard")
    console.print(Text("$ pytest --leakcheck"))
    # The last row of a picture is cut off.
    console.print(Text.from_ansi(text), end="\n\n")
    drawn = console.export_svg(title="", unique_id="report")
    # The fonts of the template would be loaded from the network.
    drawn = re.sub(r"(?s)@font-face \{.*?\}\s*", "", drawn).replace("Fira Code", "ui-monospace, Menlo, Consolas")
    # Some viewers drop spaces at the start of a text, so it starts further right instead.
    drawn = re.sub(r'x="([\d.]+)" (y="[\d.]+") textLength="([\d.]+)"( [^>]*>)((?:&#160;)+)', _indented, drawn)
    # The text itself is for those who cannot see the picture, and for the test that compares it.
    escaped = without_colours(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"(<svg[^>]*>)", lambda match: f"{match[1]}\n<desc>{escaped}</desc>", drawn, count=1)


def _indented(match: re.Match[str]) -> str:
    width = _COLUMN * match[5].count("&#160;")
    return f'x="{float(match[1]) + width:g}" {match[2]} textLength="{float(match[3]) - width:g}"{match[4]}'


def leaky() -> str:
    """Return the leaky test."""
    return f"```text\n{LEAKY}```\n"


def green() -> str:
    """Return the output for the fixed test."""
    text = run(_FIXED)
    begin = text.index("test_config.py", text.index("collected"))
    return f"```text\n$ pytest --leakcheck\n{text[begin:].rstrip()}\n```\n"


def options() -> str:
    """Return the table of options, in Markdown."""
    rows = ["| command line | configuration | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        flag = f"{option.flag}={option.metavar}" if option.metavar else option.flag
        flag = f"`{flag}`" if option.flagged else ""
        key = f"`{option.key}`" if option.ini else ""
        default = str(option.default or "") if option.kind in ("string", "linelist") else json.dumps(option.default)
        rows.append(f"| {flag} | {key} | {f'`{default}`' if default else ''} | {option.help} |")
    return "\n".join(rows) + "\n"


def budgets() -> str:
    """Return the table of budgets, in Markdown."""
    rows = ["| marker | bounds | covers | judged by `leakcheck` |", "|---|---|---|---|"]
    for name, resource in RESOURCES.items():
        mark = valid_form(f"{name}_budget").partition(",")[0] + ")"
        judged = "yes" if resource.default else "no"
        if resource.default_rate:
            judged = f"above {format_amount(resource.default_rate, resource.unit)} per iteration"
        rows.append(f"| `{mark}` | {resource.plural} | {resource.scope} | {judged} |")
    return "\n".join(rows) + "\n"


PARTS: Final[Mapping[str, Callable[[], str]]] = {"leaky": leaky, "green": green, "options": options, "budgets": budgets}


def main() -> None:
    """Rewrite every generated part."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(PART.sub(lambda match: match[1] + PARTS[match[2]]() + match[3], text), encoding="utf-8")
    PICTURE.write_text(picture(red()), encoding="utf-8")


if __name__ == "__main__":
    main()
