"""Write the generated parts of README.md: the first report, the option table and the budgets. A test checks them.

Usage: python ci/readme.py        (rewrites README.md)
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pytest_leakcheck.config.markers import valid_form
from pytest_leakcheck.config.settings import OPTIONS
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.model.units import format_amount

README: Final = Path(__file__).parents[1] / "README.md"
PART: Final = re.compile(r"(?s)(<!-- generated: (\w+) -->\n).*?(<!-- end -->)")


def report() -> str:
    """Return the report on the leaky arm of the PyAV incident in a training run with the garbage collector off."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "--leakcheck", "-p", "no:cacheprovider"]
        command += ["-p", "leakcheck_incidents.material", "--pyargs", "leakcheck_incidents.pyav_loader"]
        command += ["-k", "TestCollectorOff and leaky"]
        limited = ["sh", "-c", 'ulimit -S -n 1024 && exec "$@"', "sh", *command]
        text = subprocess.run(
            limited, cwd=folder, capture_output=True, text=True, check=False, env=_clean_environment()
        ).stdout
    begin = text.index("_ TestCollectorOff")
    begin = text.rindex("\n", 0, begin) + 1
    return f"```text\n{text[begin : text.index('= leakcheck =')].rpartition(chr(10))[0]}\n```\n"


def _clean_environment() -> dict[str, str]:
    import os

    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return clean | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}


def options() -> str:
    """Return the table of options, in Markdown."""
    rows = ["| command line | configuration | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        flag = f"{option.flag}={option.metavar}" if option.metavar else option.flag
        key = f"`{option.key}`" if option.ini else ""
        default = json.dumps(option.default) if option.kind != "string" else option.default
        rows.append(f"| `{flag}` | {key} | {f'`{default}`' if default else ''} | {option.help} |")
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


PARTS: Final[Mapping[str, Callable[[], str]]] = {"report": report, "options": options, "budgets": budgets}


def main() -> None:
    """Rewrite every generated part."""
    text = README.read_text(encoding="utf-8")
    written = PART.sub(lambda match: match[1] + PARTS[match[2]]() + match[3], text)
    README.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
