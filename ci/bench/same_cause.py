"""Run the suite of tests/adoption many times, and compare what each cause of a leak is called.

    python ci/bench/same_cause.py                         20 runs, every second one beside two busy processes

The first run writes the file of known leaks. In each later run, every leak must match the entry of its cause, whatever
its id is there. Print the ids of each cause and how many findings matched, and exit 1 if one did not.
"""

# ruff: noqa: E402 - the helpers of the tests are not installed

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("", "adoption", "support")]

from attribution import busy_processes
from planted import CAUSES, SHOP, VENDOR, leaky_tests
from projects import Outcome, Project

_BASELINE: Final = "leakcheck-baseline.json"
_BUSY_PROCESSES: Final = 2
_TIMEOUT: Final = 1200.0
_ROW: Final = "{:<16} {:>8} {:>6}  {}"


class Causes:
    """What the findings of each cause were called, and whether they matched the entry of that cause.

    Attributes:
        ids: How often each id was given to each cause.
        matched: How many findings of each cause matched its entry.
        findings: How many there were.
        wrong: The findings that were not known, known by the entry of another cause, or missing; a line for each.
    """

    def __init__(self) -> None:
        self.ids: dict[str, Counter[str]] = {owner: Counter() for owner in CAUSES}
        self.matched: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.findings: Counter[str] = Counter()

    def add(self, run: int, outcome: Outcome, entries: Mapping[str, str]) -> None:
        """Add a run, with the id of the entry of each cause, which the first run has written."""
        for owner in CAUSES:
            found = [one for one in outcome.findings if _is_of(owner, one["test"]) and one["fingerprint"]]
            if not found:
                self.wrong.append(f"run {run}: {owner}: no finding")
            self.findings[owner] += len(found)
            for one in found:
                if one["verdict"] == "leak":
                    self.ids[owner][one["fingerprint"]] += 1
                # While the file is written, two ids of one cause still become one entry.
                if one["known"] and (run == 0 or one["known"] == entries.get(owner)):
                    self.matched[owner] += 1
                else:
                    text = f"{one['verdict']} after {one['iterations']} iterations {one['reason']}"
                    self.wrong.append(f"run {run}: {one['test']}: {text}, known as {one['known'] or 'nothing'}")


def main() -> int:
    """Print the table, and return the exit status."""
    parser = argparse.ArgumentParser(description="Compare what each cause of a leak is called over many runs.")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="runs (default 20)")
    given = parser.parse_args()
    causes = Causes()
    with tempfile.TemporaryDirectory() as name:
        project = _write_suite(Path(name))
        for run in range(given.runs):
            with busy_processes(_BUSY_PROCESSES if run % 2 else 0):
                ran = _run(project, *(("--leakcheck-update-baseline",) if run == 0 else ()))
            causes.add(run, ran, _read_entries(project))
            print(f"run {run + 1} of {given.runs}", file=sys.stderr, flush=True)
    print(_ROW.format("cause", "matched", "ids", "each, with how often"))
    for owner, ids in causes.ids.items():
        named = ", ".join(f"{name} {count}" for name, count in ids.most_common())
        print(_ROW.format(owner, f"{causes.matched[owner]}/{causes.findings[owner]}", len(ids), named))
    print("\n".join(causes.wrong) or "every finding matched the entry of its cause")
    return bool(causes.wrong)


def _write_suite(folder: Path) -> Project:
    project = Project(folder)
    project.write("shop.py", SHOP)
    project.write("venv/lib/python3/site-packages/vendor.py", VENDOR)
    project.write("tests/test_leaky.py", leaky_tests())
    return project


def _run(project: Project, *arguments: str) -> Outcome:
    """Judge two tests of each cause."""
    folder = project.folder
    paths = f"{folder}{os.pathsep}{folder / 'venv/lib/python3/site-packages'}"
    judge = ("--leakcheck-scope=all", f"--leakcheck-baseline={_BASELINE}", "--tb=no", "-k", "_0 or _1")
    return project.run(*judge, *arguments, PYTHONPATH=paths, limit=_TIMEOUT)


def _read_entries(project: Project) -> dict[str, str]:
    """Return the id of the entry of each cause."""
    known = json.loads((project.folder / _BASELINE).read_text(encoding="utf-8"))["known"]
    return {entry["owner"]: entry["finding"] for entry in known}


def _is_of(owner: str, test: str) -> bool:
    name = re.escape(owner.replace(".", "_").lower())
    return re.search(rf"::test_{name}_\d+$", test) is not None


if __name__ == "__main__":
    sys.exit(main())
